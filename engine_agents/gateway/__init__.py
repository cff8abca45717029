"""OpenAI API in, PDD pipelines out."""
