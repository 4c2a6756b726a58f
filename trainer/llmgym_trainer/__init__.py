"""Multi-turn GRPO on llmgym environments, on top of TRL."""
