"""The environments that ship with llmgym, one package each."""
