"""One module an accounting. Each has ``assemble(scenario) -> list[Stage]``, and the terms are its own."""
