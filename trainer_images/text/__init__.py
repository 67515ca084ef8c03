"""The ``text`` trainer image: supervised fine-tuning of a causal language model, LoRA or all weights."""
