-- Takes the price of a plain claim from its payment. Returns the remaining units and the calls before; no row where a guard does not hold.
-- ?1 the payment, ?2 the payer, ?3 the price, ?4 a plain signature, ?5 a bound signature, ?6 the digest of the request, ?7 to ?9 the nonce.
-- The indexes stand by name, because SQLite keeps no statistics.
UPDATE payment AS p SET taken_units = p.taken_units + ?3, calls = p.calls + 1,
  is_plain_ended = p.is_plain_ended OR ?5
WHERE p.id = ?1
  AND p.payer = ?2
  AND p.state <> 'gone'
  AND NOT p.is_held
  AND NOT (?4 AND p.is_plain_ended)
  AND NOT (?4 AND ?5)
  AND ?3 <= p.value_units - p.taken_units
  AND (SELECT 1 FROM account_debt o WHERE o.payer = p.payer AND o.payee = p.payee AND o.asset = p.asset
    AND o.chain_id = p.chain_id AND o.units > 0) IS NULL
-- An open call of the same request.
  AND (SELECT 1 FROM call c INDEXED BY ix_call_repeatable WHERE c.payment_id = ?1 AND c.digest = ?6
    AND (state IN ('forwarding', 'unknown') OR cut = 'cut') AND c.state <> 'forwarding' LIMIT 1) IS NULL
-- A call that holds the nonce: by its claim, or because it ran again with it.
  AND (SELECT coalesce((
    SELECT 1 FROM call c INDEXED BY uq_call_nonce WHERE c.nonce = ?7 AND c.nonce_tx_hash = ?8
      AND c.nonce_chain_id = ?9 AND (nonce IS NOT NULL AND state <> 'released') LIMIT 1), (
    SELECT 1 FROM repeat_nonce r JOIN call h ON h.id = r.call_id WHERE r.nonce = ?7
      AND r.tx_hash = ?8 AND r.chain_id = ?9 AND h.state <> 'released' LIMIT 1))) IS NULL
  AND (SELECT 1 FROM budget b WHERE b.agent = p.payer AND b.bound_ms IS NOT NULL) IS NULL
RETURNING value_units - taken_units, calls - 1
