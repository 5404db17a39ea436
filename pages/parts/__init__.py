"""What pages share: the scenario in session and address, controls, charts, the working, texts."""
