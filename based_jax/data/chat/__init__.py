"""Conversations as prompts: the template that comes with a model's tokenizer, rendered in another process."""
