"""What a running SGLang calls on the target model, and what the model's class lacks of it, read from source."""
