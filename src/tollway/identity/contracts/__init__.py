"""Solidity that the service itself runs (by `eth_call`, never deployed), beside its compiled artifact."""
