"""The ledger of side effects: records of each effect, so that it does not happen twice."""
