-- Grants a batch of plain claims, and inserts their calls. Returns a row for each payment that was debited.
-- $1 the gateway, $2 the time of the shared clock, $3 to $16 arrays of the calls, $17 to $23 arrays of their demands, one for each payment.
-- The payments are locked first, by ascending id, and their balances are assigned from the locked rows: a relative update would be computed
-- from the old rows and fail the CHECK. A payment is debited for the calls that were inserted, without those whose nonce another
-- transaction has used since the look-up.
WITH new_calls AS MATERIALIZED (
    SELECT * FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[], $8::bigint[],
      $9::bigint[], $10::text[], $11::bytea[], $12::text[], $13::bytea[], $14::bytea[], $15::bigint[],
      $16::bigint[])
    AS given(id, terms_id, listing_key, provider, payer, payment_id, price_units, path, digest, request_id,
      nonce, nonce_tx_hash, nonce_chain_id, created_ms)),
  debits AS MATERIALIZED (
    SELECT * FROM unnest($17::bigint[], $18::bytea[], $19::bigint[], $20::bigint[], $21::boolean[],
      $22::boolean[], $23::text[])
    AS given(payment_id, payer, units, calls, has_plain_proof, has_bound_proof, first_id)),
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
  locked AS MATERIALIZED (
    SELECT p.id, p.taken_units, p.calls, p.is_plain_ended, w.has_bound_proof, w.first_id
    FROM debits w JOIN payment p ON p.id = w.payment_id WHERE
      p.payer = w.payer
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
    ORDER BY p.id FOR NO KEY UPDATE OF p),
  opened AS (
    INSERT INTO call (id, terms_id, listing_key, provider, payer, payment_id, price_units, path, digest,
      request_id, nonce, nonce_tx_hash, nonce_chain_id, created_ms, state, rail, taken_units, owner_id, epoch,
      attempts, cut, clock_releases, moved_ms)
    SELECT a.id, a.terms_id, a.listing_key, a.provider, a.payer, a.payment_id, a.price_units, a.path, a.digest,
      a.request_id, a.nonce, a.nonce_tx_hash, a.nonce_chain_id, a.created_ms, 'forwarding',
      CASE WHEN a.payment_id IS NULL THEN 'none' WHEN d.calls = 0 AND a.id = d.first_id THEN 'tx'
        ELSE 'credit' END,
      a.price_units, $1::text, 1, 1, '', true, $2::bigint
    FROM new_calls a LEFT JOIN locked d ON d.id = a.payment_id
    WHERE d.id IS NOT NULL OR a.payment_id IS NULL
    ON CONFLICT (nonce, nonce_tx_hash, nonce_chain_id) WHERE nonce IS NOT NULL AND state <> 'released' DO NOTHING
    RETURNING id, payment_id, price_units),
  granted AS (
    SELECT payment_id, sum(price_units)::bigint AS units, count(*) AS calls, array_agg(id) AS call_ids
    FROM opened GROUP BY payment_id),
  debited AS (
    UPDATE payment p SET taken_units = l.taken_units + g.units, calls = l.calls + g.calls,
      is_plain_ended = l.is_plain_ended OR l.has_bound_proof
    FROM locked l JOIN granted g ON g.payment_id = l.id WHERE p.id = l.id
    RETURNING p.id, p.value_units - p.taken_units AS rest_units, l.calls AS calls_before, g.call_ids)
SELECT id, rest_units, calls_before, call_ids FROM debited
