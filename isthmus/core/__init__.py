"""One round and the only loop: what fills a pipeline, what runs it, and what it gives back."""
