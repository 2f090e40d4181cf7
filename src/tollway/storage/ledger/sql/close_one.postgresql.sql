-- Writes the plain end of one call that this gateway forwards. Returns the call and the remaining units of its payment; no row where a guard does
-- not hold.
-- $1 the gateway, $2 the time of the shared clock, $3 to $13 the end.
WITH moved AS (
    UPDATE call c SET state = 'consumed', moved_ms = $2::bigint, http_status = e.http_status,
      upstream_status = e.upstream_status, latency_ms = e.latency_ms,
      upstream_latency_ms = e.upstream_latency_ms, error = e.error, completed_ms = e.completed_ms,
      delivery = coalesce(e.delivery, c.delivery), request_bytes = coalesce(e.request_bytes, c.request_bytes),
      response_bytes = coalesce(e.response_bytes, c.response_bytes)
    FROM (
      SELECT $3::text AS id, $4::integer AS epoch, $5::integer AS http_status, $6::integer AS upstream_status,
        $7::bigint AS latency_ms, $8::bigint AS upstream_latency_ms, $9::text AS error,
        $10::bigint AS completed_ms, $11::text AS delivery, $12::bigint AS request_bytes,
        $13::bigint AS response_bytes) e
    WHERE c.id = e.id
      AND c.state = 'forwarding'
      AND c.epoch = e.epoch
      AND c.owner_id = $1::text
-- A call that an authorisation pays is settled first.
      AND c.rail IN ('none', 'tx', 'credit')
      AND NOT c.needs_locks
-- A later end marks the hour of its call (`ledger.sales`).
      AND c.created_ms / 3600000 * 3600000 + 3900000 > $2::bigint
    RETURNING c.id, c.payment_id)
SELECT m.id, CASE p.state WHEN 'gone' THEN 0 ELSE p.value_units - p.taken_units END
FROM moved m LEFT JOIN payment p ON p.id = m.payment_id
