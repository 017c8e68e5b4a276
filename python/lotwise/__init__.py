"""lotwise: LLM work over DataFrames, run the way a factory runs lots."""
