-- Writes the event ?1 to ?6 of an end that charges its call for the first time (`webhooks.events.call_event_of`).
INSERT INTO webhook_event (id, wallet, type, subject, state, at_ms)
SELECT ?1, ?2, ?3, ?4, ?5, ?6 FROM call c
WHERE c.id = ?4 AND c.rail <> 'none' AND c.cut <> 'repeated'
  AND EXISTS (SELECT 1 FROM webhook_endpoint w WHERE w.wallet = ?2 AND w.state = 'active')
