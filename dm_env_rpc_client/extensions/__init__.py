"""Extensions of the protocol."""
