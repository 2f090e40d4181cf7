-- Writes the plain end of a call that this gateway forwards. Returns the remaining units of its payment; no row where a guard does not hold.
-- ?1 the gateway, ?2 the time of the shared clock, ?3 to ?13 the end.
UPDATE call AS c SET state = 'consumed', moved_ms = ?2, http_status = ?5,
  upstream_status = ?6, latency_ms = ?7,
  upstream_latency_ms = ?8, error = ?9, completed_ms = ?10,
  delivery = coalesce(?11, c.delivery), request_bytes = coalesce(?12, c.request_bytes),
  response_bytes = coalesce(?13, c.response_bytes)
WHERE c.id = ?3
  AND c.state = 'forwarding'
  AND c.epoch = ?4
  AND c.owner_id = ?1
-- A call that an authorisation pays is settled first.
  AND c.rail IN ('none', 'tx', 'credit')
  AND NOT c.needs_locks
-- A later end marks the hour of its call (`ledger.sales`).
  AND c.created_ms / 3600000 * 3600000 + 3900000 > ?2
RETURNING (
  SELECT CASE p.state WHEN 'gone' THEN 0 ELSE p.value_units - p.taken_units END
  FROM payment p WHERE p.id = payment_id)
