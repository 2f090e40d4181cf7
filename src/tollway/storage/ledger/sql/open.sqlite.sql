-- Inserts the call of a granted claim.
-- ?1 the gateway, ?2 the time of the shared clock, ?3 to ?16 the call, ?17 its rail.
INSERT INTO call (id, terms_id, listing_key, provider, payer, payment_id, price_units, path, digest,
  request_id, nonce, nonce_tx_hash, nonce_chain_id, created_ms, state, rail, taken_units, owner_id, epoch,
  attempts, cut, clock_releases, moved_ms)
VALUES (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 'forwarding', ?17, ?9, ?1, 1, 1, '',
  true, ?2)
