"""The families of docs/models.md: how to build each with a few hundred parameters, and what to feed it."""

import pytest
from model_zoo import COMMON, NO_DROPOUT, PICTURE, WORDS, masked_words, pictures, words

hf = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
SMALL = {**COMMON, "intermediate_size": 12}
TINY = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 2}
T5 = {"vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
BART = {"vocab_size": WORDS, "d_model": 8, "max_position_embeddings": 16, "dropout": 0.0}
BART |= {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 12, "pad_token_id": 1}
BART |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 12, "decoder_start_token_id": 2}
SWIN = {"image_size": 8, "patch_size": 1, "embed_dim": 4, "depths": [2, 1], "num_heads": [1, 2], "window_size": 2}
SEGFORMER = {"hidden_sizes": [4, 8], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2]}
SEGFORMER |= {"sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]}
SEGFORMER |= {"drop_path_rate": 0.0, "classifier_dropout_prob": 0.0}
MAMBA2 = {"state_size": 4, "head_dim": 4, "num_heads": 4, "n_groups": 1, "chunk_size": 4}
DISTILLED = {"vocab_size": WORDS, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "dropout": 0.0}
DISTILLED |= {"max_position_embeddings": 16, "attention_dropout": 0.0}
EXPERTS = {"num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
EXPERTS |= {"shared_expert_intermediate_size": 6}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
RELATIVE |= {"max_position_embeddings": 16}


def pairs():
    return {**words(), "decoder_input_ids": words(1)["input_ids"]}


def llama(**more):
    return hf.LlamaConfig(**SMALL, num_key_value_heads=1, **more)


def tuned(config, base=None):
    model = base or hf.LlamaForCausalLM(llama())
    return peft.get_peft_model(model, config)


def without(model, *names):
    for name, parameter in model.named_parameters():
        if name.endswith(names):
            parameter.requires_grad_(False)
    return model


def frozen(model, part):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part not in name)
    return model


def only(model, name):
    for each, parameter in model.named_parameters():
        parameter.requires_grad_(each.endswith(name))
    return model


def gpt2():
    return hf.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )


def clip_text():
    return hf.CLIPTextConfig(**SMALL, max_position_embeddings=16)


def vision(config, **more):
    sizes = {k: v for k, v in SMALL.items() if k != "vocab_size"}
    return config(**{**sizes, **PICTURE, **more})


def model(family, head, inputs=masked_words, **settings):
    return lambda: getattr(hf, family + head)(getattr(hf, f"{family}Config")(**settings)), inputs


def seeing(family, head="ForImageClassification", **settings):
    return lambda: getattr(hf, family + head)(vision(getattr(hf, f"{family}Config"), **settings)), pictures


def adapter(kind, **settings):
    return lambda: tuned(getattr(peft, kind)(**settings)), masked_words


LINEAR = ["q_proj", "v_proj"]
IN_FLOAT32 = 1e-6
"""The tolerance of models that compute in float32 whatever they are told."""
FAMILIES = {
    "BERT": model("Bert", "ForMaskedLM", **SMALL, **NO_DROPOUT, max_position_embeddings=16),
    "GPT-2": (lambda: hf.GPT2LMHeadModel(gpt2()), masked_words),
    "Llama": (lambda: hf.LlamaForCausalLM(llama()), masked_words),
    "Mistral": model("Mistral", "ForCausalLM", **SMALL, num_key_value_heads=1),
    "Qwen2": model("Qwen2", "ForCausalLM", **SMALL, num_key_value_heads=1),
    "Qwen3": model("Qwen3", "ForCausalLM", **SMALL, num_key_value_heads=1, head_dim=4),
    "Phi": model("Phi", "ForCausalLM", **SMALL),
    "Gemma": model("Gemma", "ForCausalLM", **SMALL, num_key_value_heads=1, head_dim=4),
    "Gemma 3": (
        lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=4)),
        masked_words,
    ),
    "OPT": model(
        "OPT", "ForCausalLM", **COMMON, ffn_dim=12, max_position_embeddings=16, word_embed_proj_dim=8, dropout=0.0
    ),
    "Mamba": (*model("Mamba", "ForCausalLM", words, **TINY, state_size=3, time_step_rank=2), IN_FLOAT32),
    "T5": model("T5", "ForConditionalGeneration", pairs, **T5),
    "T5 encoder": model("T5", "EncoderModel", **T5),
    "BART": model("Bart", "ForConditionalGeneration", pairs, **BART),
    "DeBERTa": model("DebertaV2", "ForMaskedLM", **SMALL, **NO_DROPOUT, max_position_embeddings=16),
    "DeBERTa, relative positions": model("DebertaV2", "ForMaskedLM", **SMALL, **NO_DROPOUT, **RELATIVE),
    "Mixtral": model(
        "Mixtral",
        "ForCausalLM",
        words,
        **SMALL,
        num_key_value_heads=1,
        num_local_experts=3,
        experts_implementation="eager",
    ),
    "Mixtral, experts frozen": (
        lambda: frozen(
            hf.MixtralForCausalLM(
                hf.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=3, experts_implementation="eager")
            ),
            "experts.",
        ),
        words,
    ),
    "ViT": seeing("ViT", **NO_DROPOUT),
    "DINOv2": (lambda: without(hf.Dinov2ForImageClassification(vision(hf.Dinov2Config)), "mask_token"), pictures),
    "CLIP vision": seeing("CLIPVision", "Model"),
    "CLIP text": (lambda: hf.CLIPTextModel(clip_text()), masked_words),
    "Swin": model("Swin", "ForImageClassification", pictures, **SWIN, drop_path_rate=0.0),
    "ConvNeXt": model(
        "ConvNext",
        "ForImageClassification",
        pictures,
        num_channels=3,
        patch_size=2,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        num_stages=2,
    ),
    "LoRA": adapter("LoraConfig", r=2, target_modules=LINEAR),
    "DoRA": adapter("LoraConfig", r=2, target_modules=LINEAR, use_dora=True),
    "IA3": adapter("IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoHa": adapter("LoHaConfig", r=2, target_modules=LINEAR),
    "LoKr": adapter("LoKrConfig", r=2, target_modules=LINEAR),
    "VeRA": adapter("VeraConfig", r=2, target_modules=["q_proj", "o_proj"]),
    "prompt tuning": adapter("PromptTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix tuning": adapter("PrefixTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=3),
    "RoBERTa": model("Roberta", "ForMaskedLM", **SMALL, **NO_DROPOUT, max_position_embeddings=16, pad_token_id=1),
    "DistilBERT": model("DistilBert", "ForMaskedLM", **DISTILLED),
    "ALBERT": model("Albert", "ForMaskedLM", **SMALL, **NO_DROPOUT, embedding_size=6, max_position_embeddings=16),
    "ELECTRA": model("Electra", "ForMaskedLM", **SMALL, **NO_DROPOUT, embedding_size=6, max_position_embeddings=16),
    "MPNet": model("MPNet", "ForMaskedLM", **SMALL, **NO_DROPOUT, max_position_embeddings=16),
    "ModernBERT": model("ModernBert", "ForMaskedLM", **SMALL, pad_token_id=0, global_attn_every_n_layers=2),
    "GPT-NeoX": model("GPTNeoX", "ForCausalLM", **SMALL, max_position_embeddings=16),
    "BLOOM": model(
        "Bloom",
        "ForCausalLM",
        vocab_size=WORDS,
        hidden_size=8,
        n_layer=2,
        n_head=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
    "Falcon": model("Falcon", "ForCausalLM", **COMMON, ffn_hidden_size=12, hidden_dropout=0.0),
    "Phi-3": model("Phi3", "ForCausalLM", **SMALL, num_key_value_heads=1, pad_token_id=0),
    "OLMo 2": model("Olmo2", "ForCausalLM", **SMALL, num_key_value_heads=1),
    "Mamba-2": (*model("Mamba2", "ForCausalLM", words, **TINY, **MAMBA2), IN_FLOAT32),
    "Qwen2 MoE": model("Qwen2Moe", "ForCausalLM", words, **SMALL, **EXPERTS, experts_implementation="eager"),
    "BEiT": seeing("Beit", **NO_DROPOUT, use_relative_position_bias=True, drop_path_rate=0.0),
    "DeiT": seeing("DeiT", **NO_DROPOUT),
    "Swin v2": model("Swinv2", "ForImageClassification", pictures, **SWIN, drop_path_rate=0.0),
    "SigLIP vision": seeing("SiglipVision", "Model"),
    "SegFormer": model("Segformer", "ForImageClassification", pictures, **SEGFORMER, **NO_DROPOUT),
    "CLIP": model(
        "CLIP",
        "Model",
        lambda: {**words(), **pictures()},
        text_config=clip_text().to_dict(),
        vision_config=vision(hf.CLIPVisionConfig).to_dict(),
        projection_dim=6,
    ),
    "BitFit (biases only)": (
        lambda: only(hf.BertForMaskedLM(hf.BertConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=16)), "bias"),
        masked_words,
    ),
    "OFT": adapter("OFTConfig", oft_block_size=2, r=0, target_modules=LINEAR),
    "AdaLoRA": adapter("AdaLoraConfig", init_r=2, target_modules=LINEAR, total_step=10),
    "LN tuning": adapter("LNTuningConfig", target_modules=["norm"]),
    "P-tuning": adapter("PromptEncoderConfig", task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=6),
}
