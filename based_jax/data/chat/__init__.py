"""Turn conversations into prompts: render a model's chat template in a separate process."""
