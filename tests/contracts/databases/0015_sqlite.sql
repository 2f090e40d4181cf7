-- A database of the last commit that had the migrations 0001 to 0015: its schema as these migrations made it, and rows
-- that its stores wrote. `test_baseline.py` loads it. It is never written anew.

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE payment (
	id INTEGER NOT NULL, 
	chain_id BIGINT NOT NULL, 
	tx_hash BLOB NOT NULL, 
	asset VARCHAR(42) NOT NULL, 
	payer BLOB NOT NULL, 
	payee BLOB NOT NULL, 
	value_units BIGINT NOT NULL, 
	taken_units BIGINT NOT NULL, 
	calls BIGINT NOT NULL, 
	state VARCHAR(10) NOT NULL, 
	block_number BIGINT NOT NULL, 
	block_hash BLOB NOT NULL, 
	block_time BIGINT NOT NULL, 
	is_plain_ended BOOLEAN NOT NULL, 
	is_held BOOLEAN NOT NULL, 
	recorded_ms BIGINT NOT NULL, 
	checked_ms BIGINT NOT NULL, 
	gone_ms BIGINT, is_authorized BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_payment PRIMARY KEY (id), 
	CONSTRAINT ck_payment_taken_within_value CHECK (taken_units >= 0 AND taken_units <= value_units), 
	CONSTRAINT uq_payment_transfer UNIQUE (tx_hash, chain_id, asset, payer, payee)
);

CREATE INDEX ix_payment_purse ON payment (payer, payee, asset, chain_id);

CREATE INDEX ix_payment_payer_time ON payment (payer, block_time, id);

CREATE TABLE call (
	id VARCHAR(64) NOT NULL, 
	listing_id VARCHAR(64) NOT NULL, 
	listing_name TEXT NOT NULL, 
	provider BLOB NOT NULL, 
	payer BLOB, 
	method VARCHAR(32) NOT NULL, 
	path TEXT NOT NULL, 
	digest BLOB NOT NULL, 
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
	tx_hash BLOB, 
	pay_to BLOB, 
	nonce BLOB, 
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
	tx_hash BLOB NOT NULL, 
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
	id INTEGER NOT NULL, 
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
	seq INTEGER NOT NULL, 
	id VARCHAR(64) NOT NULL, 
	provider BLOB NOT NULL, 
	name TEXT NOT NULL, 
	name_key TEXT NOT NULL, 
	description TEXT NOT NULL, 
	endpoint TEXT NOT NULL, 
	price VARCHAR(40) NOT NULL, 
	price_nano BIGINT NOT NULL, 
	currency VARCHAR(32) NOT NULL, 
	pay_to BLOB NOT NULL, 
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
	auth_sealed BLOB, 
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
	pay_to BLOB NOT NULL, 
	operations TEXT NOT NULL, 
	charge_on VARCHAR(10) NOT NULL, 
	since_ms BIGINT NOT NULL, 
	until_ms BIGINT, other_paths VARCHAR(10), methods TEXT, described TEXT, status VARCHAR(10), 
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
	id INTEGER NOT NULL, 
	shown BIGINT NOT NULL, 
	CONSTRAINT pk_listing_total PRIMARY KEY (id), 
	CONSTRAINT ck_listing_total_one_row CHECK (id = 1 AND shown >= 0)
);

CREATE VIRTUAL TABLE listing_search USING fts5(name, description, tags, tokenize = 'ascii');

CREATE TABLE signin_nonce (
	nonce VARCHAR(128) NOT NULL, 
	uri TEXT, 
	expires_ms BIGINT NOT NULL, 
	CONSTRAINT pk_signin_nonce PRIMARY KEY (nonce)
);

CREATE INDEX ix_signin_nonce_expires_ms ON signin_nonce (expires_ms);

CREATE TABLE session (
	token_hash BLOB NOT NULL, 
	address BLOB NOT NULL, 
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
	wallet BLOB NOT NULL, 
	reason TEXT NOT NULL, 
	since_ms BIGINT NOT NULL, 
	CONSTRAINT pk_wallet_block PRIMARY KEY (wallet)
);

CREATE INDEX ix_call_settling ON call (owner_id) WHERE state = 'settling';

CREATE INDEX ix_call_keyed ON call (payer, idempotency_key, created_ms, id) WHERE idempotency_key IS NOT NULL;

CREATE TABLE authorization (
	nonce BLOB NOT NULL, 
	chain_id BIGINT NOT NULL, 
	asset VARCHAR(42) NOT NULL, 
	payer BLOB NOT NULL, 
	call_id VARCHAR(64) NOT NULL, 
	payee BLOB NOT NULL, 
	base_units VARCHAR(78) NOT NULL, 
	valid_after VARCHAR(78) NOT NULL, 
	valid_before VARCHAR(78) NOT NULL, 
	signature BLOB NOT NULL, 
	dialect VARCHAR(10) NOT NULL, 
	challenge_id TEXT NOT NULL, 
	seen_block BIGINT NOT NULL, 
	is_adrift BOOLEAN NOT NULL, 
	looked_ms BIGINT NOT NULL, 
	tx_hash BLOB, 
	settled_block BIGINT, client_network BLOB, 
	CONSTRAINT pk_authorization PRIMARY KEY (nonce, chain_id, asset, payer), 
	CONSTRAINT fk_authorization_call FOREIGN KEY(call_id) REFERENCES call (id)
);

CREATE UNIQUE INDEX uq_authorization_call_id ON authorization (call_id);

CREATE INDEX ix_authorization_adrift ON authorization (looked_ms) WHERE is_adrift;

CREATE TABLE settlement_attempt (
	tx_hash BLOB NOT NULL, 
	chain_id BIGINT NOT NULL, 
	call_id VARCHAR(64) NOT NULL, 
	listing_id VARCHAR(64) NOT NULL, 
	sender BLOB NOT NULL, 
	nonce BIGINT NOT NULL, 
	raw BLOB NOT NULL, 
	fee_max_wei VARCHAR(78) NOT NULL, 
	cost_wei BIGINT NOT NULL, 
	is_open BOOLEAN NOT NULL, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_settlement_attempt PRIMARY KEY (tx_hash, chain_id), 
	CONSTRAINT fk_settlement_attempt_call FOREIGN KEY(call_id) REFERENCES call (id)
);

CREATE INDEX ix_settlement_attempt_call_id ON settlement_attempt (call_id);

CREATE INDEX ix_settlement_attempt_open ON settlement_attempt (sender, chain_id, nonce) WHERE is_open;

CREATE TABLE gas_lane (
	sender BLOB NOT NULL, 
	chain_id BIGINT NOT NULL, 
	next_nonce BIGINT NOT NULL, 
	CONSTRAINT pk_gas_lane PRIMARY KEY (sender, chain_id)
);

CREATE TABLE answer (
	call_id VARCHAR(64) NOT NULL, 
	payer BLOB NOT NULL, 
	bytes BIGINT NOT NULL, 
	sealed BLOB NOT NULL, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_answer PRIMARY KEY (call_id)
);

CREATE INDEX ix_answer_payer_time ON answer (payer, created_ms, call_id, bytes);

CREATE INDEX ix_answer_time ON answer (created_ms, call_id, bytes);

CREATE INDEX ix_authorization_settled ON authorization (payer, chain_id, settled_block) WHERE settled_block IS NOT NULL;

CREATE INDEX ix_call_moving ON call (payer) WHERE state IN ('forwarding', 'settling', 'unknown') AND rail IN ('x402', 'mpp');

CREATE INDEX ix_settlement_attempt_spent ON settlement_attempt (chain_id, created_ms, listing_id, sender, nonce, cost_wei);

CREATE TABLE schema_floor (
	id INTEGER NOT NULL, 
	revision VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_schema_floor PRIMARY KEY (id), 
	CONSTRAINT ck_schema_floor_one_row CHECK (id = 1)
);

CREATE TABLE creation_key (
	wallet BLOB NOT NULL, 
	idempotency_key VARCHAR(255) NOT NULL, 
	fingerprint BLOB NOT NULL, 
	claim BLOB NOT NULL, 
	lease_until_ms BIGINT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	listing_id VARCHAR(64), 
	location TEXT, 
	etag TEXT, 
	body BLOB, 
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
	wallet BLOB NOT NULL, 
	role VARCHAR(10) NOT NULL, 
	slot INTEGER NOT NULL, 
	calls BIGINT NOT NULL, 
	CONSTRAINT pk_call_total PRIMARY KEY (wallet, role, slot)
)
 WITHOUT ROWID

;

CREATE TABLE listing_quality_day (
	listing_id VARCHAR(64) NOT NULL, 
	day INTEGER NOT NULL, 
	bucket INTEGER NOT NULL, 
	calls BIGINT NOT NULL, 
	CONSTRAINT pk_listing_quality_day PRIMARY KEY (listing_id, day, bucket)
)
 WITHOUT ROWID

;

CREATE INDEX ix_listing_quality_day_day ON listing_quality_day (day);

CREATE TABLE listing_quality (
	listing_seq INTEGER NOT NULL, 
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
	listing_seq INTEGER NOT NULL, 
	origin VARCHAR(300) NOT NULL, 
	method VARCHAR(20), 
	signer BLOB, 
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

CREATE TABLE wallet_gas (
	sender BLOB NOT NULL, 
	chain_id BIGINT NOT NULL, 
	nonce BIGINT NOT NULL, 
	code_hash BLOB NOT NULL, 
	listing_id VARCHAR(64) NOT NULL, 
	cost_wei BIGINT NOT NULL, 
	is_reverted BOOLEAN NOT NULL, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_wallet_gas PRIMARY KEY (sender, chain_id, nonce)
);

CREATE INDEX ix_wallet_gas_spent ON wallet_gas (chain_id, created_ms, listing_id, cost_wei);

CREATE INDEX ix_wallet_gas_code ON wallet_gas (chain_id, created_ms, code_hash, is_reverted);

CREATE INDEX ix_payment_unfinal ON payment (chain_id, block_number, block_hash, checked_ms, id) WHERE state = 'unfinal';

CREATE INDEX ix_payment_gone ON payment (chain_id, gone_ms) WHERE state = 'gone';

CREATE INDEX ix_payment_held ON payment (chain_id, id) WHERE is_held AND state = 'unfinal';

CREATE INDEX ix_payment_unfinal_payer ON payment (payer, chain_id, asset) WHERE state = 'unfinal';

INSERT INTO "alembic_version" ("version_num") VALUES
('0015_unfinal_payer');

INSERT INTO "payment" ("id", "chain_id", "tx_hash", "asset", "payer", "payee", "value_units", "taken_units", "calls", "state", "block_number", "block_hash", "block_time", "is_plain_ended", "is_held", "recorded_ms", "checked_ms", "gone_ms", "is_authorized") VALUES
(1, 84532, X'7F73C54589AAE2A498BEC676C22AB0576F5349D74CA0BDDFE089BA1227004B72', 'native', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 50, 3, 1, 'unfinal', 100, X'0101010101010101010101010101010101010101010101010101010101010101', 1800000000, 0, 1, 1800000000000, 0, NULL, 0),
(2, 84532, X'C6B96208DA008581C8401312C6025B96A7028812DE06E809B03BF94598D9CEFB', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 100, 99, 3, 'final', 100, X'0101010101010101010101010101010101010101010101010101010101010101', 1800000000, 0, 1, 1800000000000, 0, NULL, 0),
(3, 84532, X'F00823A6FE48D9C71DC2B4D2F3B4219594F94B23311D1B5044B2AF8F1154D8FC', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 7, 7, 1, 'final', 100, X'0101010101010101010101010101010101010101010101010101010101010101', 1800000000, 0, 1, 1800000000000, 0, NULL, 0),
(4, 84532, X'B813B2537A176DF7231D1715FBCD8FB847032C45BA860572B1ABB88BF4EC2D0E', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 4, 4, 1, 'unfinal', 101, X'0202020202020202020202020202020202020202020202020202020202020202', 1800000000, 0, 1, 1800000000000, 0, NULL, 1),
(5, 84532, X'7ABEF35AB1297DC2C06A50AD2F3404570F9BA39FCBA05205BC8956A736414888', '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 9, 0, 1, 'gone', 100, X'0101010101010101010101010101010101010101010101010101010101010101', 1800000000, 0, 1, 1800000000000, 1800000000005, 1800000000005, 0);

INSERT INTO "call" ("rowid", "id", "listing_id", "listing_name", "provider", "payer", "method", "path", "digest", "state", "rail", "price", "price_units", "currency", "payment_id", "taken_units", "chain_id", "asset", "decimals", "tx_hash", "pay_to", "nonce", "idempotency_key", "request_id", "owner_id", "epoch", "attempts", "cut", "clock_releases", "http_status", "upstream_status", "request_bytes", "response_bytes", "latency_ms", "upstream_latency_ms", "delivery", "error", "created_ms", "moved_ms", "completed_ms") VALUES
(1, 'call_00000001', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'6464646464646464646464646464646464646464646464646464646464646464', 'consumed', 'tx', '0.01', 60, 'USDC', 2, 60, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'C6B96208DA008581C8401312C6025B96A7028812DE06E809B03BF94598D9CEFB', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-1', 'one', 1, 1, '', 1, 200, 200, 3, 1000, 12, 10, 'complete', NULL, 1800000000001, 1800000000000, 1800000000050),
(2, 'call_00000002', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'AD7C5BEF027816A800DA1736444FB58A807EF4C9603B7848673F7E3A68EB14A5', 'consumed', 'tx', '0.01', 45, 'USDC', 3, 7, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'F00823A6FE48D9C71DC2B4D2F3B4219594F94B23311D1B5044B2AF8F1154D8FC', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', X'4B4ECEDB4964A40FE416B16C7BD8B46092040EC42EF0AA69E59F09872F105CF3', 'key', 'request-2', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000002, 1800000000000, 1800000000000),
(3, 'call_00000003', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'2A80E1EF1D7842F27F2E6BE0972BB708B9A135C38860DBE73C27C3486C34F4DE', 'released', 'credit', '0.01', 1, 'USDC', 2, 0, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'C6B96208DA008581C8401312C6025B96A7028812DE06E809B03BF94598D9CEFB', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-3', 'one', 1, 1, '', 1, 502, 500, NULL, NULL, 12, 10, NULL, NULL, 1800000000003, 1800000000000, 1800000000000),
(4, 'call_00000004', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'POST', '/quote', X'13600B294191FC92924BB3CE4B969C1E7E2BAB8F4C93C3FC6D0A51733DF3C060', 'unknown', 'credit', '0.01', 1, 'USDC', 2, 1, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'C6B96208DA008581C8401312C6025B96A7028812DE06E809B03BF94598D9CEFB', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-4', 'one', 1, 1, '', 1, 504, NULL, NULL, NULL, 12, 10, NULL, 'timeout', 1800000000004, 1800000000000, NULL),
(5, 'call_00000005', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'CEEBF77A833B30520287DDD9478FF51ABBDFFA30AA90A8D655DBA0E8A79CE0C1', 'forwarding', 'tx', '0.01', 3, 'USDC', 1, 3, 84532, 'native', 6, X'7F73C54589AAE2A498BEC676C22AB0576F5349D74CA0BDDFE089BA1227004B72', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-5', 'one', 1, 1, '', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1800000000005, 1800000000000, NULL),
(6, 'call_00000006', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', NULL, 'GET', '/quote', X'E455BF8EA6E7463A1046A0B52804526E119B4BF5136279614E0B1E8E296A4E2D', 'consumed', 'none', '0.01', 0, 'USDC', NULL, 0, NULL, NULL, 6, NULL, NULL, NULL, NULL, 'request-6', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000006, 1800000000000, 1800000000000),
(7, 'call_00000008', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'E4B1702D9298FEE62DFECCC57D322A463AD55CA201256D01F62B45B2E1C21C10', 'consumed', 'x402', '0.01', 4, 'USDC', 4, 4, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'B813B2537A176DF7231D1715FBCD8FB847032C45BA860572B1ABB88BF4EC2D0E', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-8', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000008, 1800000000000, 1800000000000),
(8, 'call_00000010', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'1A192FABCE13988B84994D4296E6CDC418D55E2F1D7F942188D4040B94FC57AC', 'settling', 'mpp', '0.01', 4, 'USDC', NULL, 0, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, NULL, X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-10', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000010, 1800000000000, NULL),
(9, 'call_00000012', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'7F8B6B088B6D74C2852FC86C796DCA07B44EED6FB3DAF5E6B59F7C364DB14528', 'settling', 'x402', '0.01', 4, 'USDC', NULL, 0, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, NULL, X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-12', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000012, 1800000000000, NULL),
(10, 'call_00000013', 'api_1', 'Quotes', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'GET', '/quote', X'789BCDF275FA270780A52AE3B79BB1CE0FDA7E0AAAD87B57B74BB99AC290714A', 'reorged', 'tx', '0.01', 9, 'USDC', 5, 0, 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', 6, X'7ABEF35AB1297DC2C06A50AD2F3404570F9BA39FCBA05205BC8956A736414888', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', NULL, NULL, 'request-13', 'one', 1, 1, '', 1, 200, 200, NULL, NULL, 12, 10, NULL, NULL, 1800000000013, 1800000000005, 1800000000000);

INSERT INTO "call_topup" ("call_id", "payment_id", "units") VALUES
('call_00000002', 2, 38);

INSERT INTO "gateway_owner" ("id", "started_ms", "seen_ms", "boot_mark") VALUES
('one', 1800000000000, 1800000000000, '5f004e17-3985-49bf-bb7d-90516790b924');

INSERT INTO "admission" ("tx_hash", "admitted_ms") VALUES
(X'F6832A2AC9BBF5BD0CF3F96FBC984EFA35BBE86C03D1E1B7328A15C6C73E1395', 1800000000000);

INSERT INTO "readiness" ("id", "ready_ms") VALUES
(1, 1800000000000);

INSERT INTO "outage" ("from_ms", "to_ms") VALUES
(1, 2);

INSERT INTO "restore" ("id", "noted_ms", "released_ms") VALUES
(1, 1800000000200, NULL);

INSERT INTO "generation" ("id", "number") VALUES
(1, 2);

INSERT INTO "listing" ("seq", "id", "provider", "name", "name_key", "description", "endpoint", "price", "price_nano", "currency", "pay_to", "networks", "methods", "tags", "operations", "other_paths", "charge_on", "timeout_s", "forward_headers", "auth_location", "auth_name", "auth_sealed", "openapi_url", "signature", "rate_calls", "rate_per_s", "status", "created_ms", "updated_ms", "revision", "retired_ms", "suspended_ms", "is_shown") VALUES
(1, 'api_1', X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', 'Wetter für Köln ☔', 'wetter fur koln ☔', 'Line one
line two: "quoted", ''single'', 100 %', 'https://api.example.com', '0.02', 20000000, 'USDC', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[84532,8453]', '["GET","POST"]', '["weather","Köln"]', '[["GET","/v1/{city}","0.5",500000000]]', 'refuse', 'success', 30, '[]', 'header', 'X-Key', X'01000102030405060708090A0B6CEE99506E6CBA3B12C6B136F0A8DEDCDA9F1D69F8F64B2C8092', NULL, 'any', 10, 60, 'active', 1799999991000, 1799999995000, 2, NULL, NULL, 1),
(2, 'api_2', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'Weather', 'weather', '', 'https://api.example.com', '0.01', 10000000, 'USDC', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', '[84532]', '[]', '[]', '[]', 'serve', 'success', 30, '[]', NULL, NULL, NULL, NULL, 'any', NULL, NULL, 'active', 1799999996000, 1799999996000, 1, NULL, NULL, 1),
(3, 'api_3', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 'Weather', 'weather', '', 'https://api.example.com', '0.01', 10000000, 'USDC', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[84532]', '[]', '[]', '[]', 'serve', 'success', 30, '[]', NULL, NULL, NULL, NULL, 'any', NULL, NULL, 'active', 1799999997000, 1799999997000, 2, NULL, 1800000000000, 0);

INSERT INTO "listing_document" ("listing_seq", "openapi") VALUES
(1, '{"openapi":"3.1.0","paths":{"/v1/{city}":{"get":{}}}}');

INSERT INTO "listing_terms" ("listing_seq", "version", "price", "price_nano", "currency", "networks", "pay_to", "operations", "charge_on", "since_ms", "until_ms", "other_paths", "methods", "described", "status") VALUES
(1, 1, '0.01', 10000000, 'USDC', '[84532,8453]', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[["GET","/v1/{city}","0.5",500000000]]', 'success', 1799999991000, 1799999995000, NULL, NULL, NULL, NULL),
(1, 2, '0.02', 20000000, 'USDC', '[84532,8453]', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[["GET","/v1/{city}","0.5",500000000]]', 'success', 1799999995000, NULL, 'refuse', '["GET","POST"]', '[["GET","/v1/{city}"]]', 'active'),
(2, 1, '0.01', 10000000, 'USDC', '[84532]', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', '[]', 'success', 1799999996000, NULL, 'serve', '[]', '[]', 'active'),
(3, 1, '0.01', 10000000, 'USDC', '[84532]', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[]', 'success', 1799999997000, 1799999997000, 'serve', '[]', '[]', 'active'),
(3, 2, '0.01', 10000000, 'USDC', '[84532]', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '[]', 'success', 1799999997000, NULL, 'serve', '[]', '[]', 'suspended');

INSERT INTO "listing_tag" ("tag", "listing_seq") VALUES
('koln', 1),
('weather', 1);

INSERT INTO "listing_network" ("chain_id", "listing_seq") VALUES
(84532, 1),
(8453, 1),
(84532, 2);

INSERT INTO "listing_total" ("id", "shown") VALUES
(1, 2);

INSERT INTO "listing_search" ("rowid", "name", "description", "tags") VALUES
(1, 'wetter fur koln', 'line one line two quoted single 100', 'weather koln'),
(2, 'weather', '', '');

INSERT INTO "signin_nonce" ("nonce", "uri", "expires_ms") VALUES
('bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'https://gw.example.com/api/v2/apis', 1800000001000);

INSERT INTO "session" ("token_hash", "address", "chain_id", "created_ms", "expires_ms") VALUES
(X'0101010101010101010101010101010101010101010101010101010101010101', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 84532, 1800000000000, 1800000001000);

INSERT INTO "signature_nonce" ("keyid", "nonce", "expires_ms") VALUES
('keyid', 'nonce', 1800000001000);

INSERT INTO "wallet_block" ("wallet", "reason", "since_ms") VALUES
(X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', 'spam', 1800000000000);

INSERT INTO "authorization" ("nonce", "chain_id", "asset", "payer", "call_id", "payee", "base_units", "valid_after", "valid_before", "signature", "dialect", "challenge_id", "seen_block", "is_adrift", "looked_ms", "tx_hash", "settled_block", "client_network") VALUES
(X'83BAC430DE510FCF060976C7EEEA6F252BA67459311BE123B302776B663AD631', 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'call_00000008', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '4', '0', '1800000120', X'0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'x402-2', '', 100, 0, 0, X'B813B2537A176DF7231D1715FBCD8FB847032C45BA860572B1ABB88BF4EC2D0E', 101, X'000102030405060708090A0B0C0D0E0F'),
(X'CDC30BD2A0D6C8E0BAD49B59EF52429ABB326740C2A20CC9C04D70C64DA526FB', 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'call_00000010', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '4', '0', '1800000120', X'0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'mpp', 'ch', 100, 1, 0, NULL, NULL, X'000102030405060708090A0B0C0D0E0F'),
(X'E710680780DB3C7E10AC61CB5B4ACF350CF61220838E73444588EF8E04CCECAB', 84532, '0x036cbd53842c5426634e7929541ec2318f3dcf7e', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'call_00000012', X'BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB', '4', '0', '1800000120', X'0505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505050505', 'x402-2', '', 100, 0, 0, NULL, NULL, X'000102030405060708090A0B0C0D0E0F');

INSERT INTO "settlement_attempt" ("tx_hash", "chain_id", "call_id", "listing_id", "sender", "nonce", "raw", "fee_max_wei", "cost_wei", "is_open", "created_ms") VALUES
(X'01DE04DCD25D327C9DA209108F00A7FDFD34401945840D99FD3556B304D841CA', 84532, 'call_00000008', 'api_1', X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD', 0, X'027369676E656430', '1000', 900, 0, 1800000000000),
(X'382F516708C446598A5767157E062F247CC5DFE268846C2F58058E34B3064562', 84532, 'call_00000010', 'api_1', X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD', 1, X'027369676E656431', '1000', 1000, 1, 1800000000000),
(X'1ED464E2734E3B8E3DEE0708560532C36CC19E1221376D7A20A30D49F5CB4912', 84532, 'call_00000012', 'api_1', X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD', 2, X'027369676E656432', '1000', 1000, 1, 1800000000000);

INSERT INTO "gas_lane" ("sender", "chain_id", "next_nonce") VALUES
(X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD', 84532, 3);

INSERT INTO "answer" ("call_id", "payer", "bytes", "sealed", "created_ms") VALUES
('call_00000008', X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 46, X'01000102030405060708090A0B1881E9732F39E94977B2E9FF8D36189F8F489BFA6112123116CE69CEEBAF192AAE03278BF9CF31FDF18DA6DA30981D2CC54FF43AD2176C21B7BA0E78F33A', 1800000000000);

INSERT INTO "schema_floor" ("id", "revision") VALUES
(1, '0007_gas_by_network');

INSERT INTO "creation_key" ("wallet", "idempotency_key", "fingerprint", "claim", "lease_until_ms", "created_ms", "listing_id", "location", "etag", "body") VALUES
(X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'k', X'6161616161616161616161616161616161616161616161616161616161616161', X'00000000000000000000000000000000', 1800000060000, 1800000000000, 'api_2', '/there', '"r1-x"', X'7B7D');

INSERT INTO "call_total" ("wallet", "role", "slot", "calls") VALUES
(X'', 'mark', 0, 10),
(X'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 'payer', 0, 9),
(X'CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC', 'provider', 0, 10);

INSERT INTO "listing_quality_day" ("listing_id", "day", "bucket", "calls") VALUES
('api_1', 20000, 0, 2),
('api_1', 20000, 11, 20);

INSERT INTO "listing_quality" ("listing_seq", "calls", "success_ppm", "p50_ms", "p95_ms", "day") VALUES
(1, 22, 909090, 10, 10, 20000);

INSERT INTO "listing_ownership" ("listing_seq", "origin", "method", "signer", "verified_ms", "checked_ms", "failures") VALUES
(1, 'https://api.example.com', 'dns', NULL, 1800000000000, 1800000000000, 0);

INSERT INTO "wallet_gas" ("sender", "chain_id", "nonce", "code_hash", "listing_id", "cost_wei", "is_reverted", "created_ms") VALUES
(X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD', 84532, 1, X'0909090909090909090909090909090909090909090909090909090909090909', 'api_1', 700, 1, 1800000000000);
