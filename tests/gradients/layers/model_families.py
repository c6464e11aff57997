"""The families of docs/models.md: how to build each with a few hundred parameters, and what to feed it."""

from __future__ import annotations

import pytest
from model_zoo import COMMON, NO_DROPOUT, PICTURE, WORDS, masked_words, pictures, words

hf = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
SMALL = {**COMMON, "intermediate_size": 12}
T5 = {
    "vocab_size": WORDS,
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": WORDS,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}


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


LINEAR = ["q_proj", "v_proj"]
IN_FLOAT32 = 1e-6
"""The tolerance of models that compute in float32 whatever they are told."""
FAMILIES = {
    "BERT": (
        lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=16)),
        masked_words,
    ),
    "GPT-2": (lambda: hf.GPT2LMHeadModel(gpt2()), masked_words),
    "Llama": (lambda: hf.LlamaForCausalLM(llama()), masked_words),
    "Mistral": (lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, num_key_value_heads=1)), masked_words),
    "Qwen2": (lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, num_key_value_heads=1)), masked_words),
    "Qwen3": (lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, num_key_value_heads=1, head_dim=4)), masked_words),
    "Phi": (lambda: hf.PhiForCausalLM(hf.PhiConfig(**SMALL)), masked_words),
    "Gemma": (lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=4)), masked_words),
    "Gemma 3": (
        lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=4)),
        masked_words,
    ),
    "OPT": (
        lambda: hf.OPTForCausalLM(
            hf.OPTConfig(**COMMON, ffn_dim=12, max_position_embeddings=16, word_embed_proj_dim=8, dropout=0.0)
        ),
        masked_words,
    ),
    "Mamba": (
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, state_size=3, time_step_rank=2)
        ),
        words,
        IN_FLOAT32,
    ),
    "T5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), pairs),
    "T5 encoder": (lambda: hf.T5EncoderModel(hf.T5Config(**T5)), masked_words),
    "BART": (lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)), pairs),
    "DeBERTa": (
        lambda: hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**SMALL, **NO_DROPOUT, max_position_embeddings=16)),
        masked_words,
    ),
    "DeBERTa, relative positions": (
        lambda: hf.DebertaV2ForMaskedLM(
            hf.DebertaV2Config(
                **SMALL,
                **NO_DROPOUT,
                max_position_embeddings=16,
                relative_attention=True,
                pos_att_type=["c2p", "p2c"],
                position_biased_input=False,
            )
        ),
        masked_words,
    ),
    "Mixtral": (
        lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=3, experts_implementation="eager")
        ),
        words,
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
    "ViT": (lambda: hf.ViTForImageClassification(vision(hf.ViTConfig, **NO_DROPOUT)), pictures),
    "DINOv2": (lambda: without(hf.Dinov2ForImageClassification(vision(hf.Dinov2Config)), "mask_token"), pictures),
    "CLIP vision": (lambda: hf.CLIPVisionModel(vision(hf.CLIPVisionConfig)), pictures),
    "CLIP text": (lambda: hf.CLIPTextModel(clip_text()), masked_words),
    "Swin": (
        lambda: hf.SwinForImageClassification(
            hf.SwinConfig(
                image_size=8,
                patch_size=1,
                embed_dim=4,
                depths=[2, 1],
                num_heads=[1, 2],
                window_size=2,
                drop_path_rate=0.0,
            )
        ),
        pictures,
    ),
    "ConvNeXt": (
        lambda: hf.ConvNextForImageClassification(
            hf.ConvNextConfig(num_channels=3, patch_size=2, hidden_sizes=[4, 8], depths=[1, 1], num_stages=2)
        ),
        pictures,
    ),
    "LoRA": (lambda: tuned(peft.LoraConfig(r=2, target_modules=LINEAR)), masked_words),
    "DoRA": (lambda: tuned(peft.LoraConfig(r=2, target_modules=LINEAR, use_dora=True)), masked_words),
    "IA3": (
        lambda: tuned(peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])),
        masked_words,
    ),
    "LoHa": (lambda: tuned(peft.LoHaConfig(r=2, target_modules=LINEAR)), masked_words),
    "LoKr": (lambda: tuned(peft.LoKrConfig(r=2, target_modules=LINEAR)), masked_words),
    "VeRA": (lambda: tuned(peft.VeraConfig(r=2, target_modules=["q_proj", "o_proj"])), masked_words),
    "prompt tuning": (
        lambda: tuned(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
        masked_words,
    ),
    "prefix tuning": (
        lambda: tuned(peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)),
        masked_words,
    ),
    "RoBERTa": (
        lambda: hf.RobertaForMaskedLM(
            hf.RobertaConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=16, pad_token_id=1)
        ),
        masked_words,
    ),
    "DistilBERT": (
        lambda: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(
                vocab_size=WORDS,
                dim=8,
                n_layers=2,
                n_heads=2,
                hidden_dim=12,
                max_position_embeddings=16,
                dropout=0.0,
                attention_dropout=0.0,
            )
        ),
        masked_words,
    ),
    "ALBERT": (
        lambda: hf.AlbertForMaskedLM(
            hf.AlbertConfig(**SMALL, **NO_DROPOUT, embedding_size=6, max_position_embeddings=16)
        ),
        masked_words,
    ),
    "ELECTRA": (
        lambda: hf.ElectraForMaskedLM(
            hf.ElectraConfig(**SMALL, **NO_DROPOUT, embedding_size=6, max_position_embeddings=16)
        ),
        masked_words,
    ),
    "MPNet": (
        lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=16)),
        masked_words,
    ),
    "ModernBERT": (
        lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(**SMALL, pad_token_id=0, global_attn_every_n_layers=2)),
        masked_words,
    ),
    "GPT-NeoX": (
        lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, max_position_embeddings=16)),
        masked_words,
    ),
    "BLOOM": (
        lambda: hf.BloomForCausalLM(
            hf.BloomConfig(
                vocab_size=WORDS, hidden_size=8, n_layer=2, n_head=2, hidden_dropout=0.0, attention_dropout=0.0
            )
        ),
        masked_words,
    ),
    "Falcon": (
        lambda: hf.FalconForCausalLM(hf.FalconConfig(**COMMON, ffn_hidden_size=12, hidden_dropout=0.0)),
        masked_words,
    ),
    "Phi-3": (
        lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, num_key_value_heads=1, pad_token_id=0)),
        masked_words,
    ),
    "OLMo 2": (
        lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**SMALL, num_key_value_heads=1)),
        masked_words,
    ),
    "Mamba-2": (
        lambda: hf.Mamba2ForCausalLM(
            hf.Mamba2Config(
                vocab_size=WORDS,
                hidden_size=8,
                num_hidden_layers=2,
                state_size=4,
                head_dim=4,
                num_heads=4,
                n_groups=1,
                chunk_size=4,
            )
        ),
        words,
        IN_FLOAT32,
    ),
    "Qwen2 MoE": (
        lambda: hf.Qwen2MoeForCausalLM(
            hf.Qwen2MoeConfig(
                **SMALL,
                num_key_value_heads=1,
                num_experts=3,
                num_experts_per_tok=2,
                moe_intermediate_size=6,
                shared_expert_intermediate_size=6,
                experts_implementation="eager",
            )
        ),
        words,
    ),
    "BEiT": (
        lambda: hf.BeitForImageClassification(
            vision(hf.BeitConfig, **NO_DROPOUT, use_relative_position_bias=True, drop_path_rate=0.0)
        ),
        pictures,
    ),
    "DeiT": (lambda: hf.DeiTForImageClassification(vision(hf.DeiTConfig, **NO_DROPOUT)), pictures),
    "Swin v2": (
        lambda: hf.Swinv2ForImageClassification(
            hf.Swinv2Config(
                image_size=8,
                patch_size=1,
                embed_dim=4,
                depths=[2, 1],
                num_heads=[1, 2],
                window_size=2,
                drop_path_rate=0.0,
            )
        ),
        pictures,
    ),
    "SigLIP vision": (lambda: hf.SiglipVisionModel(vision(hf.SiglipVisionConfig)), pictures),
    "SegFormer": (
        lambda: hf.SegformerForImageClassification(
            hf.SegformerConfig(
                hidden_sizes=[4, 8],
                depths=[1, 1],
                num_encoder_blocks=2,
                num_attention_heads=[1, 2],
                sr_ratios=[2, 1],
                patch_sizes=[3, 3],
                strides=[2, 2],
                mlp_ratios=[2, 2],
                drop_path_rate=0.0,
                classifier_dropout_prob=0.0,
                **NO_DROPOUT,
            )
        ),
        pictures,
    ),
    "CLIP": (
        lambda: hf.CLIPModel(
            hf.CLIPConfig(
                text_config=clip_text().to_dict(), vision_config=vision(hf.CLIPVisionConfig).to_dict(), projection_dim=6
            )
        ),
        lambda: {**words(), **pictures()},
    ),
    "BitFit (biases only)": (
        lambda: only(hf.BertForMaskedLM(hf.BertConfig(**SMALL, **NO_DROPOUT, max_position_embeddings=16)), "bias"),
        masked_words,
    ),
    "OFT": (lambda: tuned(peft.OFTConfig(oft_block_size=2, r=0, target_modules=LINEAR)), masked_words),
    "AdaLoRA": (lambda: tuned(peft.AdaLoraConfig(init_r=2, target_modules=LINEAR, total_step=10)), masked_words),
    "LN tuning": (lambda: tuned(peft.LNTuningConfig(target_modules=["norm"])), masked_words),
    "P-tuning": (
        lambda: tuned(peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=6)),
        masked_words,
    ),
}
