-- Writes the plain ends of calls that this gateway forwards. Returns a row for each end that was written: the call and the remaining units of its
-- payment.
-- $1 the gateway, $2 the time of the shared clock, $3 to $13 arrays of the ends.
WITH moved AS (
    UPDATE call c SET state = 'consumed', moved_ms = $2::bigint, http_status = e.http_status,
      upstream_status = e.upstream_status, latency_ms = e.latency_ms,
      upstream_latency_ms = e.upstream_latency_ms, error = e.error, completed_ms = e.completed_ms,
      delivery = coalesce(e.delivery, c.delivery), request_bytes = coalesce(e.request_bytes, c.request_bytes),
      response_bytes = coalesce(e.response_bytes, c.response_bytes)
    FROM (
      SELECT * FROM unnest($3::text[], $4::integer[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[],
        $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[])
      AS given(id, epoch, http_status, upstream_status, latency_ms, upstream_latency_ms, error, completed_ms,
        delivery, request_bytes, response_bytes)) e
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
