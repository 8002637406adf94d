"""SmolLM2-135M-Instruct: where the model is found, and short questions to train it on."""
