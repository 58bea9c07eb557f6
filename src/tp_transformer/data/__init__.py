"""Questions and answers: their symbols, their files, their batches."""
