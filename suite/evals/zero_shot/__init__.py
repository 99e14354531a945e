"""Items of the battery: what a language model is asked, as text, without being trained for it."""
