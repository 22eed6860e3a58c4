"""Raw input to raw output: translate, score and explain with a loaded model."""
