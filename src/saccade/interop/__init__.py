"""Export and import of models: Hugging Face, CTranslate2, ONNX."""
