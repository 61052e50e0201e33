"""Question sets that are made from other ones, from corpora and from invented worlds, by programs and language models."""
