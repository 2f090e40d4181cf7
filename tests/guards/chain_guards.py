"""Guards of the reads of chains: which logs, nodes and contract wallets prove a payment (threats P4, P6, P8 and P10, K5)."""

from tests.guards.guard import guard

SETTLES = "chain/test_tokens.py::test_a_receipt_settles_an_authorisation_by_its_own_transfer_only"

CHAIN_GUARDS = (
    guard(
        "P4",
        "a transfer counts only in a log of the token itself",
        "chain.tokens:_list_movements",
        "if log.address == token and not log.removed and _is_transfer(log)",
        "if not log.removed and _is_transfer(log)",
        test="chain/test_tokens.py::test_logs_other_than_transfers_of_the_token_are_left_out",
    ),
    guard(
        "P8",
        "few contract wallets are called per request and chain",
        "payments.transaction_verifier:SignerCheck._is_contract_signer",
        "        if sum(called == chain_id for called, _ in presented.wallet_results) >= CONTRACT_PAYERS_MAX:\n",
        "        if False:\n",
        test="payments/test_transaction_verifier.py::TestContractPayers::test_at_most_four_contract_wallets_are_called",
    ),
    guard(
        "P8",
        "only the complete magic word confirms the signature of a contract wallet",
        "chain.tokens:is_signature_valid",
        "return payload[:_WORD] == ERC1271_MAGIC + bytes(_WORD - len(ERC1271_MAGIC))",
        "return payload[:4] == ERC1271_MAGIC",
        test="chain/test_tokens.py::test_only_the_magic_word_confirms_a_signature",
    ),
    guard(
        "P10",
        "a nonce opens only its own settlement",
        "chain.tokens:has_settled",
        "    if used.count((payer, nonce)) != 1:\n",
        "    if not used:\n",
        test=SETTLES,
    ),
    guard(
        "P10",
        "one transfer settles one of several authorisations of a payer",
        "chain.tokens:has_settled",
        "    return _list_movements(reported[event + 1 : event + 2], token) == [(payer, payee, base_units)]",
        "    return (payer, payee, base_units) in _list_movements(reported, token)",
        test=SETTLES,
    ),
    guard(
        "P6",
        "one node's response makes no transfer final",
        "payments.authorization_onchain:find_transfer",
        "is_final=quorum is Quorum.AGREED and facts.finalized_number >= facts.block_number,",
        "is_final=facts.finalized_number >= facts.block_number,",
        test="payments/test_authorization_onchain.py::test_one_nodes_response_makes_no_transfer_final",
    ),
    guard(
        "K5",
        "a response of a node that serves another chain does not count",
        "chain.nodes:RpcNode._send_part",
        "        if served_id != self._chain_id:\n",
        "        if False:\n",
        test="chain/test_nodes.py::test_a_node_of_another_chain_is_unusable",
    ),
)
