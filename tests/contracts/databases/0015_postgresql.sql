-- A database of the last commit that had the migrations 0001 to 0015: its schema as these migrations made it, and rows
-- that its stores wrote. `test_baseline.py` loads it. It is never written anew.
-- The trigger that counts calls comes last, so that it does not count these.

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE payment (
	id BIGSERIAL NOT NULL,
	chain_id BIGINT NOT NULL,
	tx_hash BYTEA NOT NULL,
	asset VARCHAR(42) NOT NULL,
	payer BYTEA NOT NULL,
	payee BYTEA NOT NULL,
	value_units BIGINT NOT NULL,
	taken_units BIGINT NOT NULL,
	calls BIGINT NOT NULL,
	state VARCHAR(10) NOT NULL,
	block_number BIGINT NOT NULL,
	block_hash BYTEA NOT NULL,
	block_time BIGINT NOT NULL,
	is_plain_ended BOOLEAN NOT NULL,
	is_held BOOLEAN NOT NULL,
	recorded_ms BIGINT NOT NULL,
	checked_ms BIGINT NOT NULL,
	gone_ms BIGINT,
	CONSTRAINT pk_payment PRIMARY KEY (id),
	CONSTRAINT ck_payment_taken_within_value CHECK (taken_units >= 0 AND taken_units <= value_units),
	CONSTRAINT uq_payment_transfer UNIQUE (tx_hash, chain_id, asset, payer, payee)
);

CREATE INDEX ix_payment_purse ON payment (payer, payee, asset, chain_id);

CREATE INDEX ix_payment_payer_time ON payment (payer, block_time, id);

CREATE INDEX ix_payment_state_checked ON payment (state, checked_ms);

CREATE TABLE call (
	id VARCHAR(64) NOT NULL,
	listing_id VARCHAR(64) NOT NULL,
	listing_name TEXT NOT NULL,
	provider BYTEA NOT NULL,
	payer BYTEA,
	method VARCHAR(32) NOT NULL,
	path TEXT NOT NULL,
	digest BYTEA NOT NULL,
	state VARCHAR(10) NOT NULL,
	rail VARCHAR(10) NOT NULL,
	price VARCHAR(40) NOT NULL,
	price_units BIGINT NOT NULL,
	currency VARCHAR(32) NOT NULL,
	payment_id BIGINT,
	taken_units BIGINT NOT NULL,
	chain_id BIGINT,
	asset VARCHAR(42),
	decimals INTEGER NOT NULL,
	tx_hash BYTEA,
	pay_to BYTEA,
	nonce BYTEA,
	idempotency_key TEXT,
	request_id VARCHAR(128) NOT NULL,
	owner_id VARCHAR(64) NOT NULL,
	epoch INTEGER NOT NULL,
	attempts INTEGER NOT NULL,
	cut VARCHAR(10) NOT NULL,
	clock_releases BOOLEAN NOT NULL,
	http_status INTEGER,
	upstream_status INTEGER,
	request_bytes BIGINT,
	response_bytes BIGINT,
	latency_ms BIGINT,
	upstream_latency_ms BIGINT,
	delivery VARCHAR(10),
	error TEXT,
	created_ms BIGINT NOT NULL,
	moved_ms BIGINT NOT NULL,
	completed_ms BIGINT,
	CONSTRAINT pk_call PRIMARY KEY (id),
	CONSTRAINT fk_call_payment FOREIGN KEY(payment_id) REFERENCES payment (id),
	CONSTRAINT ck_call_taken_within_price CHECK (taken_units >= 0 AND taken_units <= price_units)
);

CREATE INDEX ix_call_payer_time ON call (payer, created_ms, id);

CREATE INDEX ix_call_provider_time ON call (provider, created_ms, id);

CREATE INDEX ix_call_payment_time ON call (payment_id, created_ms, id);

CREATE UNIQUE INDEX uq_call_nonce ON call (nonce, tx_hash, chain_id) WHERE nonce IS NOT NULL AND state <> 'released';

CREATE INDEX ix_call_repeatable ON call (payment_id, digest) WHERE state IN ('forwarding', 'unknown') OR cut = 'cut';

CREATE INDEX ix_call_forwarding ON call (owner_id) WHERE state = 'forwarding';

CREATE INDEX ix_call_unknown ON call (moved_ms) WHERE state = 'unknown';

CREATE INDEX ix_call_reorged ON call (payer) WHERE state = 'reorged';

CREATE TABLE call_topup (
	call_id VARCHAR(64) NOT NULL,
	payment_id BIGINT NOT NULL,
	units BIGINT NOT NULL,
	CONSTRAINT pk_call_topup PRIMARY KEY (call_id, payment_id),
	CONSTRAINT fk_call_topup_call FOREIGN KEY(call_id) REFERENCES call (id),
	CONSTRAINT fk_call_topup_payment FOREIGN KEY(payment_id) REFERENCES payment (id),
	CONSTRAINT ck_call_topup_units_positive CHECK (units > 0)
);

CREATE INDEX ix_call_topup_payment_id ON call_topup (payment_id);

CREATE TABLE gateway_owner (
	id VARCHAR(64) NOT NULL,
	started_ms BIGINT NOT NULL,
	seen_ms BIGINT NOT NULL,
	boot_mark VARCHAR(64) NOT NULL,
	CONSTRAINT pk_gateway_owner PRIMARY KEY (id)
);

CREATE TABLE admission (
	tx_hash BYTEA NOT NULL,
	admitted_ms BIGINT NOT NULL,
	CONSTRAINT pk_admission PRIMARY KEY (tx_hash)
);

CREATE TABLE readiness (
	id INTEGER NOT NULL,
	ready_ms BIGINT NOT NULL,
	CONSTRAINT pk_readiness PRIMARY KEY (id)
);

CREATE TABLE outage (
	from_ms BIGINT NOT NULL,
	to_ms BIGINT NOT NULL,
	CONSTRAINT pk_outage PRIMARY KEY (from_ms)
);

CREATE TABLE restore (
	id BIGSERIAL NOT NULL,
	noted_ms BIGINT NOT NULL,
	released_ms BIGINT,
	CONSTRAINT pk_restore PRIMARY KEY (id)
);

CREATE TABLE generation (
	id INTEGER NOT NULL,
	number BIGINT NOT NULL,
	CONSTRAINT pk_generation PRIMARY KEY (id)
);

CREATE TABLE listing (
	seq BIGSERIAL NOT NULL,
	id VARCHAR(64) NOT NULL,
	provider BYTEA NOT NULL,
	name TEXT NOT NULL,
	name_key TEXT COLLATE "C" NOT NULL,
	description TEXT NOT NULL,
	endpoint TEXT NOT NULL,
	price VARCHAR(40) NOT NULL,
	price_nano BIGINT NOT NULL,
	currency VARCHAR(32) NOT NULL,
	pay_to BYTEA NOT NULL,
	networks TEXT NOT NULL,
	methods TEXT NOT NULL,
	tags TEXT NOT NULL,
	operations TEXT NOT NULL,
	other_paths VARCHAR(10) NOT NULL,
	charge_on VARCHAR(10) NOT NULL,
	timeout_s INTEGER NOT NULL,
	forward_headers TEXT NOT NULL,
	auth_location VARCHAR(10),
	auth_name TEXT,
	auth_sealed BYTEA,
	openapi_url TEXT,
	signature VARCHAR(10) NOT NULL,
	rate_calls INTEGER,
	rate_per_s INTEGER,
	status VARCHAR(10) NOT NULL,
	created_ms BIGINT NOT NULL,
	updated_ms BIGINT NOT NULL,
	revision BIGINT NOT NULL,
	retired_ms BIGINT,
	suspended_ms BIGINT,
	is_shown BOOLEAN NOT NULL,
	CONSTRAINT pk_listing PRIMARY KEY (seq),
	CONSTRAINT uq_listing_id UNIQUE (id),
	CONSTRAINT ck_listing_price_not_negative CHECK (price_nano >= 0),
	CONSTRAINT ck_listing_revision_positive CHECK (revision >= 1)
);

CREATE INDEX ix_listing_shown ON listing (is_shown, seq);

CREATE INDEX ix_listing_name ON listing (is_shown, name_key, seq);

CREATE INDEX ix_listing_provider ON listing (provider, is_shown, seq);

CREATE INDEX ix_listing_currency ON listing (currency, is_shown, seq);

CREATE INDEX ix_listing_price ON listing (currency, is_shown, price_nano, seq);

CREATE INDEX ix_listing_pay_to ON listing (pay_to, is_shown, provider);

CREATE TABLE listing_document (
	listing_seq BIGINT NOT NULL,
	openapi TEXT NOT NULL,
	CONSTRAINT pk_listing_document PRIMARY KEY (listing_seq),
	CONSTRAINT fk_listing_document_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_terms (
	listing_seq BIGINT NOT NULL,
	version BIGINT NOT NULL,
	price VARCHAR(40) NOT NULL,
	price_nano BIGINT NOT NULL,
	currency VARCHAR(32) NOT NULL,
	networks TEXT NOT NULL,
	pay_to BYTEA NOT NULL,
	operations TEXT NOT NULL,
	charge_on VARCHAR(10) NOT NULL,
	since_ms BIGINT NOT NULL,
	until_ms BIGINT,
	CONSTRAINT pk_listing_terms PRIMARY KEY (listing_seq, version),
	CONSTRAINT ck_listing_terms_ends_after_it_begins CHECK (until_ms IS NULL OR until_ms >= since_ms),
	CONSTRAINT fk_listing_terms_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_tag (
	tag TEXT NOT NULL,
	listing_seq BIGINT NOT NULL,
	CONSTRAINT pk_listing_tag PRIMARY KEY (tag, listing_seq),
	CONSTRAINT fk_listing_tag_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_tag_listing ON listing_tag (listing_seq);

CREATE TABLE listing_network (
	chain_id BIGINT NOT NULL,
	listing_seq BIGINT NOT NULL,
	CONSTRAINT pk_listing_network PRIMARY KEY (chain_id, listing_seq),
	CONSTRAINT fk_listing_network_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_network_listing ON listing_network (listing_seq);

CREATE TABLE listing_total (
	id SERIAL NOT NULL,
	shown BIGINT NOT NULL,
	CONSTRAINT pk_listing_total PRIMARY KEY (id),
	CONSTRAINT ck_listing_total_one_row CHECK (id = 1 AND shown >= 0)
);

CREATE TABLE listing_search ( listing_seq bigint NOT NULL CONSTRAINT pk_listing_search PRIMARY KEY CONSTRAINT fk_listing_search_listing REFERENCES listing (seq), words tsvector NOT NULL);

CREATE INDEX ix_listing_search_words ON listing_search USING gin (words);

CREATE TABLE signin_nonce (
	nonce VARCHAR(128) NOT NULL,
	uri TEXT,
	expires_ms BIGINT NOT NULL,
	CONSTRAINT pk_signin_nonce PRIMARY KEY (nonce)
);

CREATE INDEX ix_signin_nonce_expires_ms ON signin_nonce (expires_ms);

CREATE TABLE session (
	token_hash BYTEA NOT NULL,
	address BYTEA NOT NULL,
	chain_id BIGINT NOT NULL,
	created_ms BIGINT NOT NULL,
	expires_ms BIGINT NOT NULL,
	CONSTRAINT pk_session PRIMARY KEY (token_hash)
);

CREATE INDEX ix_session_expires_ms ON session (expires_ms);

CREATE TABLE signature_nonce (
	keyid VARCHAR(128) NOT NULL,
	nonce VARCHAR(128) NOT NULL,
	expires_ms BIGINT NOT NULL,
	CONSTRAINT pk_signature_nonce PRIMARY KEY (keyid, nonce)
);

CREATE INDEX ix_signature_nonce_expires_ms ON signature_nonce (expires_ms);

CREATE TABLE wallet_block (
	wallet BYTEA NOT NULL,
	reason TEXT NOT NULL,
	since_ms BIGINT NOT NULL,
	CONSTRAINT pk_wallet_block PRIMARY KEY (wallet)
);

ALTER TABLE payment ADD COLUMN is_authorized BOOLEAN DEFAULT false NOT NULL;

CREATE INDEX ix_call_settling ON call (owner_id) WHERE state = 'settling';

CREATE INDEX ix_call_moving ON call (payer) WHERE state IN ('forwarding', 'settling') AND rail IN ('x402', 'mpp');

CREATE INDEX ix_call_keyed ON call (payer, idempotency_key, created_ms, id) WHERE idempotency_key IS NOT NULL;

CREATE TABLE "authorization" (
	nonce BYTEA NOT NULL,
	chain_id BIGINT NOT NULL,
	asset VARCHAR(42) NOT NULL,
	payer BYTEA NOT NULL,
	call_id VARCHAR(64) NOT NULL,
	payee BYTEA NOT NULL,
	base_units VARCHAR(78) NOT NULL,
	valid_after VARCHAR(78) NOT NULL,
	valid_before VARCHAR(78) NOT NULL,
	signature BYTEA NOT NULL,
	dialect VARCHAR(10) NOT NULL,
	challenge_id TEXT NOT NULL,
	seen_block BIGINT NOT NULL,
	is_adrift BOOLEAN NOT NULL,
	looked_ms BIGINT NOT NULL,
	tx_hash BYTEA,
	settled_block BIGINT,
	CONSTRAINT pk_authorization PRIMARY KEY (nonce, chain_id, asset, payer),
	CONSTRAINT fk_authorization_call FOREIGN KEY(call_id) REFERENCES call (id)
);

CREATE UNIQUE INDEX uq_authorization_call_id ON "authorization" (call_id);

CREATE INDEX ix_authorization_adrift ON "authorization" (looked_ms) WHERE is_adrift;

CREATE INDEX ix_authorization_settled ON "authorization" (payer, settled_block) WHERE settled_block IS NOT NULL;

CREATE TABLE settlement_attempt (
	tx_hash BYTEA NOT NULL,
	chain_id BIGINT NOT NULL,
	call_id VARCHAR(64) NOT NULL,
	listing_id VARCHAR(64) NOT NULL,
	sender BYTEA NOT NULL,
	nonce BIGINT NOT NULL,
	raw BYTEA NOT NULL,
	fee_max_wei VARCHAR(78) NOT NULL,
	cost_wei BIGINT NOT NULL,
	is_open BOOLEAN NOT NULL,
	created_ms BIGINT NOT NULL,
	CONSTRAINT pk_settlement_attempt PRIMARY KEY (tx_hash, chain_id),
	CONSTRAINT fk_settlement_attempt_call FOREIGN KEY(call_id) REFERENCES call (id)
);

CREATE INDEX ix_settlement_attempt_call_id ON settlement_attempt (call_id);

CREATE INDEX ix_settlement_attempt_listing_time ON settlement_attempt (listing_id, chain_id, created_ms);

CREATE INDEX ix_settlement_attempt_open ON settlement_attempt (sender, chain_id, nonce) WHERE is_open;

CREATE TABLE gas_lane (
	sender BYTEA NOT NULL,
	chain_id BIGINT NOT NULL,
	next_nonce BIGINT NOT NULL,
	CONSTRAINT pk_gas_lane PRIMARY KEY (sender, chain_id)
);

CREATE TABLE answer (
	call_id VARCHAR(64) NOT NULL,
	payer BYTEA NOT NULL,
	bytes BIGINT NOT NULL,
	sealed BYTEA NOT NULL,
	created_ms BIGINT NOT NULL,
	CONSTRAINT pk_answer PRIMARY KEY (call_id)
);

CREATE INDEX ix_answer_payer_time ON answer (payer, created_ms, call_id, bytes);

CREATE INDEX ix_answer_time ON answer (created_ms, call_id, bytes);

DROP INDEX ix_authorization_settled;

CREATE INDEX ix_authorization_settled ON "authorization" (payer, chain_id, settled_block) WHERE settled_block IS NOT NULL;

DROP INDEX ix_call_moving;

CREATE INDEX ix_call_moving ON call (payer) WHERE state IN ('forwarding', 'settling', 'unknown') AND rail IN ('x402', 'mpp');

DROP INDEX ix_settlement_attempt_listing_time;

CREATE INDEX ix_settlement_attempt_spent ON settlement_attempt (chain_id, created_ms, listing_id, sender, nonce, cost_wei);

CREATE TABLE schema_floor (
	id SERIAL NOT NULL,
	revision VARCHAR(32) NOT NULL,
	CONSTRAINT pk_schema_floor PRIMARY KEY (id),
	CONSTRAINT ck_schema_floor_one_row CHECK (id = 1)
);

CREATE TABLE creation_key (
	wallet BYTEA NOT NULL,
	idempotency_key VARCHAR(255) NOT NULL,
	fingerprint BYTEA NOT NULL,
	claim BYTEA NOT NULL,
	lease_until_ms BIGINT NOT NULL,
	created_ms BIGINT NOT NULL,
	listing_id VARCHAR(64),
	location TEXT,
	etag TEXT,
	body BYTEA,
	CONSTRAINT pk_creation_key PRIMARY KEY (wallet, idempotency_key)
);

CREATE INDEX ix_creation_key_created_ms ON creation_key (created_ms);

CREATE INDEX ix_call_payer_listing ON call (payer, listing_id, created_ms, id);

CREATE INDEX ix_call_payer_failed ON call (payer, created_ms, id, listing_id, state, upstream_status) WHERE state = 'released' OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400));

CREATE INDEX ix_call_payer_unknown ON call (payer, created_ms, id, listing_id) WHERE state = 'unknown';

CREATE INDEX ix_call_provider_listing ON call (provider, listing_id, created_ms, id);

CREATE INDEX ix_call_provider_failed ON call (provider, created_ms, id, listing_id, state, upstream_status) WHERE state = 'released' OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400));

CREATE INDEX ix_call_provider_unknown ON call (provider, created_ms, id, listing_id) WHERE state = 'unknown';

CREATE INDEX ix_listing_payee ON listing (pay_to, is_shown, seq);

CREATE TABLE call_total (
	wallet BYTEA NOT NULL,
	role VARCHAR(10) NOT NULL,
	slot INTEGER NOT NULL,
	calls BIGINT NOT NULL,
	CONSTRAINT pk_call_total PRIMARY KEY (wallet, role, slot)
);

CREATE TABLE listing_quality_day (
	listing_id VARCHAR(64) NOT NULL,
	day INTEGER NOT NULL,
	bucket INTEGER NOT NULL,
	calls BIGINT NOT NULL,
	CONSTRAINT pk_listing_quality_day PRIMARY KEY (listing_id, day, bucket)
);

CREATE INDEX ix_listing_quality_day_day ON listing_quality_day (day);

CREATE TABLE listing_quality (
	listing_seq BIGINT NOT NULL,
	calls BIGINT NOT NULL,
	success_ppm INTEGER NOT NULL,
	p50_ms BIGINT,
	p95_ms BIGINT,
	day INTEGER NOT NULL,
	CONSTRAINT pk_listing_quality PRIMARY KEY (listing_seq),
	CONSTRAINT fk_listing_quality_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_quality_success ON listing_quality (success_ppm, listing_seq);

CREATE INDEX ix_listing_quality_stale ON listing_quality (day, listing_seq);

CREATE TABLE listing_ownership (
	listing_seq BIGINT NOT NULL,
	origin VARCHAR(300) NOT NULL,
	method VARCHAR(20),
	signer BYTEA,
	verified_ms BIGINT,
	checked_ms BIGINT NOT NULL,
	failures INTEGER NOT NULL,
	CONSTRAINT pk_listing_ownership PRIMARY KEY (listing_seq),
	CONSTRAINT fk_listing_ownership_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_ownership_origin ON listing_ownership (origin, listing_seq) WHERE verified_ms IS NOT NULL;

CREATE INDEX ix_listing_ownership_due ON listing_ownership (checked_ms, listing_seq) WHERE verified_ms IS NOT NULL;

CREATE INDEX ix_listing_ownership_verified ON listing_ownership (listing_seq) WHERE verified_ms IS NOT NULL;

CREATE INDEX ix_listing_provider_currency ON listing (provider, currency, is_shown, seq);

ALTER TABLE "authorization" ADD COLUMN client_network BYTEA;

ALTER TABLE listing_terms ADD COLUMN other_paths VARCHAR(10);

ALTER TABLE listing_terms ADD COLUMN methods TEXT;

ALTER TABLE listing_terms ADD COLUMN described TEXT;

ALTER TABLE listing_terms ADD COLUMN status VARCHAR(10);

CREATE TABLE wallet_gas (
	sender BYTEA NOT NULL,
	chain_id BIGINT NOT NULL,
	nonce BIGINT NOT NULL,
	code_hash BYTEA NOT NULL,
	listing_id VARCHAR(64) NOT NULL,
	cost_wei BIGINT NOT NULL,
	is_reverted BOOLEAN NOT NULL,
	created_ms BIGINT NOT NULL,
	CONSTRAINT pk_wallet_gas PRIMARY KEY (sender, chain_id, nonce)
);

CREATE INDEX ix_wallet_gas_spent ON wallet_gas (chain_id, created_ms, listing_id, cost_wei);

CREATE INDEX ix_wallet_gas_code ON wallet_gas (chain_id, created_ms, code_hash, is_reverted);

DROP INDEX ix_payment_state_checked;

CREATE INDEX ix_payment_unfinal ON payment (chain_id, block_number, block_hash, checked_ms, id) WHERE state = 'unfinal';

CREATE INDEX ix_payment_gone ON payment (chain_id, gone_ms) WHERE state = 'gone';

CREATE INDEX ix_payment_held ON payment (chain_id, id) WHERE is_held AND state = 'unfinal';

CREATE INDEX ix_payment_unfinal_payer ON payment (payer, chain_id, asset) WHERE state = 'unfinal';

INSERT INTO "alembic_version" ("version_num") VALUES
('0015_unfinal_payer');

INSERT INTO "payment" ("id", "chain_id", "tx_hash", "asset", "payer", "payee", "value_units", "taken_units", "calls", "state", "block_number", "block_hash", "block_time", "is_plain_ended", "is_held", "recorded_ms", "checked_ms", "gone_ms", "is_authorized") VALUES
('1', '84532', E'\\x7f73c54589aae2a498bec676c22ab0576f5349d74ca0bddfe089ba1227004b72', 'native', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '50', '3', '1', 'unfinal', '100', E'\\x0101010101010101010101010101010101010101010101010101010101010101', '1800000000', 'false', 'true', '1800000000000', '0', NULL, 'false'),
('2', '84532', E'\\xc6b96208da008581c8401312c6025b96a7028812de06e809b03bf94598d9cefb', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '100', '99', '3', 'final', '100', E'\\x0101010101010101010101010101010101010101010101010101010101010101', '1800000000', 'false', 'true', '1800000000000', '0', NULL, 'false'),
('3', '84532', E'\\xf00823a6fe48d9c71dc2b4d2f3b4219594f94b23311d1b5044b2af8f1154d8fc', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '7', '7', '1', 'final', '100', E'\\x0101010101010101010101010101010101010101010101010101010101010101', '1800000000', 'false', 'true', '1800000000000', '0', NULL, 'false'),
('4', '84532', E'\\xb813b2537a176df7231d1715fbcd8fb847032c45ba860572b1abb88bf4ec2d0e', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '4', '4', '1', 'unfinal', '101', E'\\x0202020202020202020202020202020202020202020202020202020202020202', '1800000000', 'false', 'true', '1800000000000', '0', NULL, 'true'),
('5', '84532', E'\\x7abef35ab1297dc2c06a50ad2f3404570f9ba39fcba05205bc8956a736414888', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '9', '0', '1', 'gone', '100', E'\\x0101010101010101010101010101010101010101010101010101010101010101', '1800000000', 'false', 'true', '1800000000000', '1800000000005', '1800000000005', 'false');

INSERT INTO "call" ("id", "listing_id", "listing_name", "provider", "payer", "method", "path", "digest", "state", "rail", "price", "price_units", "currency", "payment_id", "taken_units", "chain_id", "asset", "decimals", "tx_hash", "pay_to", "nonce", "idempotency_key", "request_id", "owner_id", "epoch", "attempts", "cut", "clock_releases", "http_status", "upstream_status", "request_bytes", "response_bytes", "latency_ms", "upstream_latency_ms", "delivery", "error", "created_ms", "moved_ms", "completed_ms") VALUES
('call_00000001', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\x6464646464646464646464646464646464646464646464646464646464646464', 'consumed', 'tx', '0.01', '60', 'USDC', '2', '60', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\xc6b96208da008581c8401312c6025b96a7028812de06e809b03bf94598d9cefb', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-1', 'one', '1', '1', '', 'true', '200', '200', '3', '1000', '12', '10', 'complete', NULL, '1800000000001', '1800000000000', '1800000000050'),
('call_00000002', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\xad7c5bef027816a800da1736444fb58a807ef4c9603b7848673f7e3a68eb14a5', 'consumed', 'tx', '0.01', '45', 'USDC', '3', '7', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\xf00823a6fe48d9c71dc2b4d2f3b4219594f94b23311d1b5044b2af8f1154d8fc', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', E'\\x4b4ecedb4964a40fe416b16c7bd8b46092040ec42ef0aa69e59f09872f105cf3', 'key', 'request-2', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000002', '1800000000000', '1800000000000'),
('call_00000003', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\x2a80e1ef1d7842f27f2e6be0972bb708b9a135c38860dbe73c27c3486c34f4de', 'released', 'credit', '0.01', '1', 'USDC', '2', '0', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\xc6b96208da008581c8401312c6025b96a7028812de06e809b03bf94598d9cefb', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-3', 'one', '1', '1', '', 'true', '502', '500', NULL, NULL, '12', '10', NULL, NULL, '1800000000003', '1800000000000', '1800000000000'),
('call_00000004', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'POST', '/quote', E'\\x13600b294191fc92924bb3ce4b969c1e7e2bab8f4c93c3fc6d0a51733df3c060', 'unknown', 'credit', '0.01', '1', 'USDC', '2', '1', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\xc6b96208da008581c8401312c6025b96a7028812de06e809b03bf94598d9cefb', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-4', 'one', '1', '1', '', 'true', '504', NULL, NULL, NULL, '12', '10', NULL, 'timeout', '1800000000004', '1800000000000', NULL),
('call_00000005', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\xceebf77a833b30520287ddd9478ff51abbdffa30aa90a8d655dba0e8a79ce0c1', 'forwarding', 'tx', '0.01', '3', 'USDC', '1', '3', '84532', 'native', '6', E'\\x7f73c54589aae2a498bec676c22ab0576f5349d74ca0bddfe089ba1227004b72', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-5', 'one', '1', '1', '', 'true', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '1800000000005', '1800000000000', NULL),
('call_00000006', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', NULL, 'GET', '/quote', E'\\xe455bf8ea6e7463a1046a0b52804526e119b4bf5136279614e0b1e8e296a4e2d', 'consumed', 'none', '0.01', '0', 'USDC', NULL, '0', NULL, NULL, '6', NULL, NULL, NULL, NULL, 'request-6', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000006', '1800000000000', '1800000000000'),
('call_00000008', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\xe4b1702d9298fee62dfeccc57d322a463ad55ca201256d01f62b45b2e1c21c10', 'consumed', 'x402', '0.01', '4', 'USDC', '4', '4', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\xb813b2537a176df7231d1715fbcd8fb847032c45ba860572b1abb88bf4ec2d0e', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-8', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000008', '1800000000000', '1800000000000'),
('call_00000010', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\x1a192fabce13988b84994d4296e6cdc418d55e2f1d7f942188d4040b94fc57ac', 'settling', 'mpp', '0.01', '4', 'USDC', NULL, '0', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', NULL, E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-10', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000010', '1800000000000', NULL),
('call_00000012', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\x7f8b6b088b6d74c2852fc86c796dca07b44eed6fb3daf5e6b59f7c364db14528', 'settling', 'x402', '0.01', '4', 'USDC', NULL, '0', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', NULL, E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-12', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000012', '1800000000000', NULL),
('call_00000013', 'api_1', 'Quotes', E'\\xcccccccccccccccccccccccccccccccccccccccc', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'GET', '/quote', E'\\x789bcdf275fa270780a52ae3b79bb1ce0fda7e0aaad87b57b74bb99ac290714a', 'reorged', 'tx', '0.01', '9', 'USDC', '5', '0', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', '6', E'\\x7abef35ab1297dc2c06a50ad2f3404570f9ba39fcba05205bc8956a736414888', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', NULL, NULL, 'request-13', 'one', '1', '1', '', 'true', '200', '200', NULL, NULL, '12', '10', NULL, NULL, '1800000000013', '1800000000005', '1800000000000');

INSERT INTO "call_topup" ("call_id", "payment_id", "units") VALUES
('call_00000002', '2', '38');

INSERT INTO "gateway_owner" ("id", "started_ms", "seen_ms", "boot_mark") VALUES
('one', '1800000000000', '1800000000000', '2026-11-22 19:25:31.752446+00');

INSERT INTO "admission" ("tx_hash", "admitted_ms") VALUES
(E'\\xf6832a2ac9bbf5bd0cf3f96fbc984efa35bbe86c03d1e1b7328a15c6c73e1395', '1800000000000');

INSERT INTO "readiness" ("id", "ready_ms") VALUES
('1', '1800000000000');

INSERT INTO "outage" ("from_ms", "to_ms") VALUES
('1', '2');

INSERT INTO "restore" ("id", "noted_ms", "released_ms") VALUES
('1', '1800000000200', NULL);

INSERT INTO "listing" ("seq", "id", "provider", "name", "name_key", "description", "endpoint", "price", "price_nano", "currency", "pay_to", "networks", "methods", "tags", "operations", "other_paths", "charge_on", "timeout_s", "forward_headers", "auth_location", "auth_name", "auth_sealed", "openapi_url", "signature", "rate_calls", "rate_per_s", "status", "created_ms", "updated_ms", "revision", "retired_ms", "suspended_ms", "is_shown") VALUES ('1', 'api_1', E'\\xcccccccccccccccccccccccccccccccccccccccc', 'Wetter für Köln ☔', 'wetter fur koln ☔', 'Line one
line two: "quoted", ''single'', 100 %', 'https://api.example.com', '0.02', '20000000', 'USDC', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[84532,8453]', '["GET","POST"]', '["weather","Köln"]', '[["GET","/v1/{city}","0.5",500000000]]', 'refuse', 'success', '30', '[]', 'header', 'X-Key', E'\\x01000102030405060708090a0b6cee99506e6cba3b12c6b136f0a8dedcda9f1d69f8f64b2c8092', NULL, 'any', '10', '60', 'active', '1799999991000', '1799999995000', '2', NULL, NULL, 'true');
INSERT INTO "listing" ("seq", "id", "provider", "name", "name_key", "description", "endpoint", "price", "price_nano", "currency", "pay_to", "networks", "methods", "tags", "operations", "other_paths", "charge_on", "timeout_s", "forward_headers", "auth_location", "auth_name", "auth_sealed", "openapi_url", "signature", "rate_calls", "rate_per_s", "status", "created_ms", "updated_ms", "revision", "retired_ms", "suspended_ms", "is_shown") VALUES
('2', 'api_2', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'Weather', 'weather', '', 'https://api.example.com', '0.01', '10000000', 'USDC', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '[84532]', '[]', '[]', '[]', 'serve', 'success', '30', '[]', NULL, NULL, NULL, NULL, 'any', NULL, NULL, 'active', '1799999996000', '1799999996000', '1', NULL, NULL, 'true'),
('3', 'api_3', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'Weather', 'weather', '', 'https://api.example.com', '0.01', '10000000', 'USDC', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[84532]', '[]', '[]', '[]', 'serve', 'success', '30', '[]', NULL, NULL, NULL, NULL, 'any', NULL, NULL, 'active', '1799999997000', '1799999997000', '2', NULL, '1800000000000', 'false');

INSERT INTO "listing_document" ("listing_seq", "openapi") VALUES
('1', '{"openapi":"3.1.0","paths":{"/v1/{city}":{"get":{}}}}');

INSERT INTO "listing_terms" ("listing_seq", "version", "price", "price_nano", "currency", "networks", "pay_to", "operations", "charge_on", "since_ms", "until_ms", "other_paths", "methods", "described", "status") VALUES
('1', '2', '0.02', '20000000', 'USDC', '[84532,8453]', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[["GET","/v1/{city}","0.5",500000000]]', 'success', '1799999995000', NULL, 'refuse', '["GET","POST"]', '[["GET","/v1/{city}"]]', 'active'),
('1', '1', '0.01', '10000000', 'USDC', '[84532,8453]', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[["GET","/v1/{city}","0.5",500000000]]', 'success', '1799999991000', '1799999995000', NULL, NULL, NULL, NULL),
('2', '1', '0.01', '10000000', 'USDC', '[84532]', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '[]', 'success', '1799999996000', NULL, 'serve', '[]', '[]', 'active'),
('3', '1', '0.01', '10000000', 'USDC', '[84532]', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[]', 'success', '1799999997000', '1799999997000', 'serve', '[]', '[]', 'active'),
('3', '2', '0.01', '10000000', 'USDC', '[84532]', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '[]', 'success', '1799999997000', NULL, 'serve', '[]', '[]', 'suspended');

INSERT INTO "listing_tag" ("tag", "listing_seq") VALUES
('koln', '1'),
('weather', '1');

INSERT INTO "listing_network" ("chain_id", "listing_seq") VALUES
('8453', '1'),
('84532', '1'),
('84532', '2');

INSERT INTO "listing_total" ("id", "shown") VALUES
('1', '2');

INSERT INTO "listing_search" ("listing_seq", "words") VALUES
('1', '''100'':10 ''fur'':2A ''koln'':3A,12B ''line'':4,6 ''one'':5 ''quoted'':8 ''single'':9 ''two'':7 ''weather'':11B ''wetter'':1A'),
('2', '''weather'':1A');

INSERT INTO "signin_nonce" ("nonce", "uri", "expires_ms") VALUES
('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'https://gw.example.com/api/v2/apis', '1800000001000');

INSERT INTO "session" ("token_hash", "address", "chain_id", "created_ms", "expires_ms") VALUES
(E'\\x0101010101010101010101010101010101010101010101010101010101010101', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '84532', '1800000000000', '1800000001000');

INSERT INTO "signature_nonce" ("keyid", "nonce", "expires_ms") VALUES
('keyid', 'nonce', '1800000001000');

INSERT INTO "wallet_block" ("wallet", "reason", "since_ms") VALUES
(E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'spam', '1800000000000');

INSERT INTO "authorization" ("nonce", "chain_id", "asset", "payer", "call_id", "payee", "base_units", "valid_after", "valid_before", "signature", "dialect", "challenge_id", "seen_block", "is_adrift", "looked_ms", "tx_hash", "settled_block", "client_network") VALUES
(E'\\x83bac430de510fcf060976c7eeea6f252ba67459311be123b302776b663ad631', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'call_00000008', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '4', '0', '1800000120', E'\\x0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'x402-2', '', '100', 'false', '0', E'\\xb813b2537a176df7231d1715fbcd8fb847032c45ba860572b1abb88bf4ec2d0e', '101', E'\\x000102030405060708090a0b0c0d0e0f'),
(E'\\xcdc30bd2a0d6c8e0bad49b59ef52429abb326740c2a20cc9c04d70c64da526fb', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'call_00000010', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '4', '0', '1800000120', E'\\x0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'mpp', 'ch', '100', 'true', '0', NULL, NULL, E'\\x000102030405060708090a0b0c0d0e0f'),
(E'\\xe710680780db3c7e10ac61cb5b4acf350cf61220838e73444588ef8e04ccecab', '84532', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'call_00000012', E'\\xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', '4', '0', '1800000120', E'\\x0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'x402-2', '', '100', 'false', '0', NULL, NULL, E'\\x000102030405060708090a0b0c0d0e0f');

INSERT INTO "settlement_attempt" ("tx_hash", "chain_id", "call_id", "listing_id", "sender", "nonce", "raw", "fee_max_wei", "cost_wei", "is_open", "created_ms") VALUES
(E'\\x01de04dcd25d327c9da209108f00a7fdfd34401945840d99fd3556b304d841ca', '84532', 'call_00000008', 'api_1', E'\\xdddddddddddddddddddddddddddddddddddddddd', '0', E'\\x027369676e656430', '1000', '900', 'false', '1800000000000'),
(E'\\x1ed464e2734e3b8e3dee0708560532c36cc19e1221376d7a20a30d49f5cb4912', '84532', 'call_00000012', 'api_1', E'\\xdddddddddddddddddddddddddddddddddddddddd', '2', E'\\x027369676e656432', '1000', '1000', 'true', '1800000000000'),
(E'\\x382f516708c446598a5767157e062f247cc5dfe268846c2f58058e34b3064562', '84532', 'call_00000010', 'api_1', E'\\xdddddddddddddddddddddddddddddddddddddddd', '1', E'\\x027369676e656431', '1000', '1000', 'true', '1800000000000');

INSERT INTO "gas_lane" ("sender", "chain_id", "next_nonce") VALUES
(E'\\xdddddddddddddddddddddddddddddddddddddddd', '84532', '3');

INSERT INTO "answer" ("call_id", "payer", "bytes", "sealed", "created_ms") VALUES
('call_00000008', E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', '46', E'\\x01000102030405060708090a0b1881e9732f39e94977b2e9ff8d36189f8f489bfa6112123116ce69ceebaf192aae03278bf9cf31fdf18da6da30981d2cc54ff43ad2176c21b7ba0e78f33a', '1800000000000');

INSERT INTO "schema_floor" ("id", "revision") VALUES
('1', '0007_gas_by_network');

INSERT INTO "creation_key" ("wallet", "idempotency_key", "fingerprint", "claim", "lease_until_ms", "created_ms", "listing_id", "location", "etag", "body") VALUES
(E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'k', E'\\x6161616161616161616161616161616161616161616161616161616161616161', E'\\x00000000000000000000000000000000', '1795375602757', '1795375542757', 'api_2', '/there', '"r1-x"', E'\\x7b7d');

INSERT INTO "call_total" ("wallet", "role", "slot", "calls") VALUES
(E'\\xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'payer', '196', '9'),
(E'\\xcccccccccccccccccccccccccccccccccccccccc', 'provider', '196', '10');

INSERT INTO "listing_quality_day" ("listing_id", "day", "bucket", "calls") VALUES
('api_1', '20000', '0', '2'),
('api_1', '20000', '11', '20');

INSERT INTO "listing_quality" ("listing_seq", "calls", "success_ppm", "p50_ms", "p95_ms", "day") VALUES
('1', '22', '909090', '10', '10', '20000');

INSERT INTO "listing_ownership" ("listing_seq", "origin", "method", "signer", "verified_ms", "checked_ms", "failures") VALUES
('1', 'https://api.example.com', 'dns', NULL, '1800000000000', '1800000000000', '0');

INSERT INTO "wallet_gas" ("sender", "chain_id", "nonce", "code_hash", "listing_id", "cost_wei", "is_reverted", "created_ms") VALUES
(E'\\xdddddddddddddddddddddddddddddddddddddddd', '84532', '1', E'\\x0909090909090909090909090909090909090909090909090909090909090909', 'api_1', '700', 'true', '1800000000000');

SELECT setval('listing_seq_seq', 3);
SELECT setval('payment_id_seq', 5);
SELECT setval('restore_id_seq', 1);
CREATE FUNCTION count_calls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO call_total AS kept (wallet, role, slot, calls)
    SELECT told.wallet, told.role, pg_backend_pid() % 256, count(*)
    FROM (
        SELECT provider AS wallet, 'provider' AS role FROM fresh
        UNION ALL SELECT payer, 'payer' FROM fresh WHERE payer IS NOT NULL
    ) AS told
    GROUP BY told.wallet, told.role ORDER BY told.wallet, told.role
    ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = kept.calls + excluded.calls;
    RETURN NULL;
END
$$;

CREATE TRIGGER tr_call_total AFTER INSERT ON call REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION count_calls();
