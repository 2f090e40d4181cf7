-- Grants one plain claim that a payment pays, and inserts its call. Returns no row where a guard does not hold.
-- $1 the gateway, $2 the time of the shared clock, $3 to $16 the call, $17 to $23 its demand on the payment.
-- The UPDATE waits for the lock of the payment itself.
WITH new_calls AS MATERIALIZED (
    SELECT $3::text AS id, $4::bigint AS terms_id, $5::bigint AS listing_key, $6::bytea AS provider,
      $7::bytea AS payer, $8::bigint AS payment_id, $9::bigint AS price_units, $10::text AS path,
      $11::bytea AS digest, $12::text AS request_id, $13::bytea AS nonce, $14::bytea AS nonce_tx_hash,
      $15::bigint AS nonce_chain_id, $16::bigint AS created_ms),
  debits AS MATERIALIZED (
    SELECT $17::bigint AS payment_id, $18::bytea AS payer, $19::bigint AS units, $20::bigint AS calls,
      $21::boolean AS has_plain_proof, $22::boolean AS has_bound_proof, $23::text AS first_id),
-- An open call of the same request.
  repeating AS MATERIALIZED (
    SELECT a.payment_id FROM new_calls a WHERE (
      SELECT 1 FROM call c WHERE c.payment_id = a.payment_id AND c.digest = a.digest
        AND (state IN ('forwarding', 'unknown') OR cut = 'cut') AND c.state <> 'forwarding' LIMIT 1) = 1),
-- A call that holds the nonce: by its claim, or because it ran again with it.
  replaying AS MATERIALIZED (
    SELECT a.payment_id FROM new_calls a WHERE (
      SELECT coalesce((
        SELECT 1 FROM call c WHERE c.nonce = a.nonce AND c.nonce_tx_hash = a.nonce_tx_hash
          AND c.nonce_chain_id = a.nonce_chain_id AND (nonce IS NOT NULL AND state <> 'released') LIMIT 1), (
        SELECT 1 FROM repeat_nonce r JOIN call h ON h.id = r.call_id WHERE r.nonce = a.nonce
          AND r.tx_hash = a.nonce_tx_hash AND r.chain_id = a.nonce_chain_id
          AND h.state <> 'released' LIMIT 1))) = 1),
  debited AS (
    UPDATE payment p SET taken_units = p.taken_units + w.units, calls = p.calls + 1,
      is_plain_ended = p.is_plain_ended OR w.has_bound_proof
    FROM debits w WHERE p.id = w.payment_id
      AND p.payer = w.payer
      AND p.state <> 'gone'
      AND NOT p.is_held
      AND NOT (w.has_plain_proof AND p.is_plain_ended)
      AND NOT (w.has_plain_proof AND w.has_bound_proof)
      AND w.units <= p.value_units - p.taken_units
      AND (SELECT 1 FROM account_debt o WHERE o.payer = p.payer AND o.payee = p.payee AND o.asset = p.asset
        AND o.chain_id = p.chain_id AND o.units > 0) IS NULL
      AND p.id NOT IN (SELECT payment_id FROM repeating)
      AND p.id NOT IN (SELECT payment_id FROM replaying)
      AND (SELECT 1 FROM budget b WHERE b.agent = p.payer AND b.bound_ms IS NOT NULL) IS NULL
    RETURNING p.id, p.value_units - p.taken_units AS rest_units, p.calls - 1 AS calls, w.first_id),
  opened AS (
    INSERT INTO call (id, terms_id, listing_key, provider, payer, payment_id, price_units, path, digest,
      request_id, nonce, nonce_tx_hash, nonce_chain_id, created_ms, state, rail, taken_units, owner_id, epoch,
      attempts, cut, clock_releases, moved_ms)
    SELECT a.id, a.terms_id, a.listing_key, a.provider, a.payer, a.payment_id, a.price_units, a.path, a.digest,
      a.request_id, a.nonce, a.nonce_tx_hash, a.nonce_chain_id, a.created_ms, 'forwarding',
      CASE WHEN a.payment_id IS NULL THEN 'none' WHEN d.calls = 0 AND a.id = d.first_id THEN 'tx'
        ELSE 'credit' END,
      a.price_units, $1::text, 1, 1, '', true, $2::bigint
    FROM new_calls a LEFT JOIN debited d ON d.id = a.payment_id
    WHERE d.id IS NOT NULL OR a.payment_id IS NULL)
SELECT id, rest_units, calls, NULL::text[] FROM debited
