"""Where the time went: the event log that every process writes, and the ledger that accounts for all of it."""
