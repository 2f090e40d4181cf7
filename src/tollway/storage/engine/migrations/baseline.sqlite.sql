-- The tables of a new database. `make schema` writes this file from the tables of tollway.storage.

CREATE TABLE account_debt (
  payer BLOB NOT NULL,
  payee BLOB NOT NULL,
  asset VARCHAR(42) NOT NULL,
  chain_id BIGINT NOT NULL,
  units BIGINT NOT NULL,
  CONSTRAINT pk_account_debt PRIMARY KEY (payer, payee, asset, chain_id)
)
 WITHOUT ROWID;

CREATE INDEX ix_account_debt_owed ON account_debt (chain_id) WHERE units > 0;

CREATE TABLE admin_code (
  code_hash BLOB NOT NULL,
  actor TEXT NOT NULL,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_admin_code PRIMARY KEY (code_hash)
);

CREATE TABLE admin_session (
  token_hash BLOB NOT NULL,
  actor TEXT NOT NULL,
  created_ms BIGINT NOT NULL,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_admin_session PRIMARY KEY (token_hash)
);

CREATE TABLE admission (
  tx_hash BLOB NOT NULL,
  admitted_ms BIGINT NOT NULL,
  CONSTRAINT pk_admission PRIMARY KEY (tx_hash)
);

CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

INSERT INTO alembic_version (version_num) VALUES ('0037_baseline');

CREATE TABLE audit_entry (
  id INTEGER NOT NULL,
  at_ms BIGINT NOT NULL,
  actor TEXT NOT NULL,
  action VARCHAR(40) NOT NULL,
  target TEXT NOT NULL,
  reason TEXT NOT NULL,
  is_logged BOOLEAN DEFAULT 0 NOT NULL,
  CONSTRAINT pk_audit_entry PRIMARY KEY (id)
);

CREATE INDEX ix_audit_entry_target ON audit_entry (target, at_ms);

CREATE INDEX ix_audit_entry_unlogged ON audit_entry (id) WHERE NOT is_logged;

CREATE TABLE audit_run (
  id INTEGER NOT NULL,
  ended_ms BIGINT NOT NULL,
  differences INTEGER NOT NULL,
  CONSTRAINT pk_audit_run PRIMARY KEY (id)
);

CREATE TABLE backup_run (
  id INTEGER NOT NULL,
  ended_ms BIGINT NOT NULL,
  CONSTRAINT pk_backup_run PRIMARY KEY (id)
);

CREATE TABLE budget (
  owner BLOB NOT NULL,
  agent BLOB NOT NULL,
  network TEXT NOT NULL,
  nonce BIGINT NOT NULL,
  accepted_nonce BIGINT,
  policy TEXT,
  signature TEXT,
  stored_ms BIGINT NOT NULL,
  bound_ms BIGINT,
  currency TEXT NOT NULL,
  since_ms BIGINT DEFAULT '0' NOT NULL,
  last_ms BIGINT DEFAULT '0' NOT NULL,
  hour_ms BIGINT DEFAULT '0' NOT NULL,
  hour_nano BIGINT DEFAULT '0' NOT NULL,
  day_ms BIGINT DEFAULT '0' NOT NULL,
  day_nano BIGINT DEFAULT '0' NOT NULL,
  month_ms BIGINT DEFAULT '0' NOT NULL,
  month_nano BIGINT DEFAULT '0' NOT NULL,
  total_nano BIGINT DEFAULT '0' NOT NULL,
  reached TEXT DEFAULT '' NOT NULL,
  CONSTRAINT pk_budget PRIMARY KEY (owner, agent)
);

CREATE UNIQUE INDEX uq_budget_bound ON budget (agent) WHERE bound_ms IS NOT NULL;

CREATE INDEX ix_budget_pending ON budget (agent, stored_ms) WHERE bound_ms IS NULL;

CREATE TABLE call_terms (
  id INTEGER NOT NULL,
  listing_id VARCHAR(64) NOT NULL,
  listing_name TEXT NOT NULL,
  method VARCHAR(32) NOT NULL,
  price VARCHAR(40) NOT NULL,
  currency VARCHAR(32) NOT NULL,
  chain_id BIGINT,
  asset VARCHAR(42),
  decimals INTEGER NOT NULL,
  pay_to BLOB,
  metering TEXT,
  CONSTRAINT pk_call_terms PRIMARY KEY (id)
);

CREATE TABLE call_total (
  wallet BLOB NOT NULL,
  role VARCHAR(10) NOT NULL,
  slot INTEGER NOT NULL,
  calls BIGINT NOT NULL,
  CONSTRAINT pk_call_total PRIMARY KEY (wallet, role, slot)
)
 WITHOUT ROWID;

INSERT INTO call_total (wallet, role, slot, calls) VALUES (x'', 'mark', 0, 0);

CREATE TABLE channel_claim (
  id VARCHAR(64) NOT NULL,
  chain_id BIGINT NOT NULL,
  is_refund BOOLEAN NOT NULL,
  created_ms BIGINT NOT NULL,
  ended_ms BIGINT,
  CONSTRAINT pk_channel_claim PRIMARY KEY (id)
);

CREATE INDEX ix_channel_claim_open ON channel_claim (chain_id) WHERE ended_ms IS NULL;

CREATE TABLE channel_look (
  chain_id BIGINT NOT NULL,
  looked_ms BIGINT NOT NULL,
  CONSTRAINT pk_channel_look PRIMARY KEY (chain_id)
);

CREATE TABLE channel_refused (
  chain_id BIGINT NOT NULL,
  receiver BLOB NOT NULL,
  token BLOB NOT NULL,
  refused_ms BIGINT NOT NULL,
  CONSTRAINT pk_channel_refused PRIMARY KEY (chain_id, receiver, token)
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

CREATE TABLE free_call (
  listing_id VARCHAR(64) NOT NULL,
  wallet BLOB NOT NULL,
  used INTEGER NOT NULL,
  since_ms BIGINT NOT NULL,
  address_day BLOB NOT NULL,
  CONSTRAINT pk_free_call PRIMARY KEY (listing_id, wallet)
);

CREATE INDEX ix_free_call_address_day ON free_call (address_day);

CREATE TABLE gas_lane (
  sender BLOB NOT NULL,
  chain_id BIGINT NOT NULL,
  next_nonce BIGINT NOT NULL,
  CONSTRAINT pk_gas_lane PRIMARY KEY (sender, chain_id)
);

CREATE TABLE gateway_build (
  owner_id VARCHAR(64) NOT NULL,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  schema_revision TEXT NOT NULL,
  CONSTRAINT pk_gateway_build PRIMARY KEY (owner_id)
);

CREATE TABLE gateway_owner (
  id VARCHAR(64) NOT NULL,
  started_ms BIGINT NOT NULL,
  seen_ms BIGINT NOT NULL,
  boot_mark VARCHAR(64) NOT NULL,
  CONSTRAINT pk_gateway_owner PRIMARY KEY (id)
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
  other_paths VARCHAR(16) NOT NULL,
  charge_on VARCHAR(16) NOT NULL,
  timeout_s INTEGER NOT NULL,
  forward_headers TEXT NOT NULL,
  auth_location VARCHAR(10),
  auth_name TEXT,
  auth_sealed BLOB,
  openapi_url TEXT,
  metering TEXT,
  signature VARCHAR(16) NOT NULL,
  rate_calls INTEGER,
  rate_per_s INTEGER,
  free_count INTEGER,
  free_per_s INTEGER,
  status VARCHAR(16) NOT NULL,
  forward_signature VARCHAR(16) NOT NULL,
  contact TEXT,
  website TEXT,
  terms_url TEXT,
  created_ms BIGINT NOT NULL,
  updated_ms BIGINT NOT NULL,
  revision BIGINT NOT NULL,
  retired_ms BIGINT,
  suspended_ms BIGINT,
  is_shown BOOLEAN NOT NULL,
  forward_sealed BLOB,
  CONSTRAINT pk_listing PRIMARY KEY (seq),
  CONSTRAINT uq_listing_id UNIQUE (id),
  CONSTRAINT ck_listing_price_not_negative CHECK (price_nano >= 0),
  CONSTRAINT ck_listing_revision_positive CHECK (revision >= 1)
);

CREATE INDEX ix_listing_shown ON listing (is_shown, seq);

CREATE INDEX ix_listing_name ON listing (is_shown, name_key, seq);

CREATE INDEX ix_listing_provider ON listing (provider, is_shown, seq);

CREATE INDEX ix_listing_provider_currency ON listing (provider, currency, is_shown, seq);

CREATE INDEX ix_listing_currency ON listing (currency, is_shown, seq);

CREATE INDEX ix_listing_price ON listing (currency, is_shown, price_nano, seq);

CREATE INDEX ix_listing_pay_to ON listing (pay_to, is_shown, provider);

CREATE INDEX ix_listing_payee ON listing (pay_to, is_shown, seq);

CREATE INDEX ix_listing_suspended ON listing (suspended_ms) WHERE suspended_ms IS NOT NULL AND retired_ms IS NULL;

CREATE TABLE listing_quality_day (
  listing_id VARCHAR(64) NOT NULL,
  day INTEGER NOT NULL,
  bucket INTEGER NOT NULL,
  calls BIGINT NOT NULL,
  CONSTRAINT pk_listing_quality_day PRIMARY KEY (listing_id, day, bucket)
)
 WITHOUT ROWID;

CREATE INDEX ix_listing_quality_day_day ON listing_quality_day (day);

CREATE TABLE listing_total (
  id INTEGER NOT NULL,
  shown BIGINT NOT NULL,
  vector_changes BIGINT NOT NULL,
  CONSTRAINT pk_listing_total PRIMARY KEY (id),
  CONSTRAINT ck_listing_total_one_row CHECK (id = 1 AND shown >= 0)
);

INSERT INTO listing_total (id, shown, vector_changes) VALUES (1, 0, 0);

CREATE TABLE outage (
  from_ms BIGINT NOT NULL,
  to_ms BIGINT NOT NULL,
  CONSTRAINT pk_outage PRIMARY KEY (from_ms)
);

CREATE TABLE page_session (
  token_hash BLOB NOT NULL,
  address BLOB NOT NULL,
  chain_id BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  used_ms BIGINT NOT NULL,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_page_session PRIMARY KEY (token_hash)
);

CREATE INDEX ix_page_session_expires_ms ON page_session (expires_ms);

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
  is_authorized BOOLEAN DEFAULT 0 NOT NULL,
  is_escrow BOOLEAN DEFAULT 0 NOT NULL,
  is_refund BOOLEAN DEFAULT 0 NOT NULL,
  recorded_ms BIGINT NOT NULL,
  checked_ms BIGINT NOT NULL,
  gone_ms BIGINT,
  CONSTRAINT pk_payment PRIMARY KEY (id),
  CONSTRAINT ck_payment_taken_within_value CHECK (taken_units >= 0 AND taken_units <= value_units),
  CONSTRAINT ck_payment_refund_taken CHECK (NOT is_refund OR taken_units = value_units),
  CONSTRAINT uq_payment_transfer UNIQUE (tx_hash, chain_id, asset, payer, payee)
);

CREATE INDEX ix_payment_account ON payment (payer, payee, asset, chain_id);

CREATE INDEX ix_payment_payer_time ON payment (payer, block_time, id);

CREATE INDEX ix_payment_payee_time ON payment (payee, block_time, id);

CREATE INDEX ix_payment_unfinal ON payment (chain_id, block_number, block_hash, checked_ms, id) WHERE state = 'unfinal';

CREATE INDEX ix_payment_unfinal_payer ON payment (payer, chain_id, asset) WHERE state = 'unfinal';

CREATE INDEX ix_payment_gone ON payment (chain_id, gone_ms) WHERE state = 'gone';

CREATE INDEX ix_payment_held ON payment (chain_id, id) WHERE is_held AND state = 'unfinal';

CREATE TABLE readiness (
  id INTEGER NOT NULL,
  ready_ms BIGINT NOT NULL,
  CONSTRAINT pk_readiness PRIMARY KEY (id)
);

CREATE TABLE restore (
  id INTEGER NOT NULL,
  noted_ms BIGINT NOT NULL,
  released_ms BIGINT,
  CONSTRAINT pk_restore PRIMARY KEY (id)
);

CREATE TABLE sales_closed (
  step VARCHAR(4) NOT NULL,
  start_ms BIGINT NOT NULL,
  version INTEGER NOT NULL,
  written_ms BIGINT NOT NULL,
  CONSTRAINT pk_sales_closed PRIMARY KEY (step, start_ms)
)
 WITHOUT ROWID;

CREATE TABLE sales_day (
  provider BLOB NOT NULL,
  start_ms BIGINT NOT NULL,
  listing_id VARCHAR(64) NOT NULL,
  chain_id BIGINT NOT NULL,
  asset VARCHAR(42) NOT NULL,
  currency VARCHAR(32) NOT NULL,
  decimals INTEGER NOT NULL,
  state VARCHAR(10) NOT NULL,
  calls BIGINT NOT NULL,
  high_units BIGINT NOT NULL,
  low_units BIGINT NOT NULL,
  CONSTRAINT pk_sales_day PRIMARY KEY (provider, start_ms, listing_id, chain_id, asset, currency, decimals, state)
)
 WITHOUT ROWID;

CREATE INDEX ix_sales_day_start ON sales_day (start_ms);

CREATE TABLE sales_hour (
  provider BLOB NOT NULL,
  start_ms BIGINT NOT NULL,
  listing_id VARCHAR(64) NOT NULL,
  chain_id BIGINT NOT NULL,
  asset VARCHAR(42) NOT NULL,
  currency VARCHAR(32) NOT NULL,
  decimals INTEGER NOT NULL,
  state VARCHAR(10) NOT NULL,
  calls BIGINT NOT NULL,
  high_units BIGINT NOT NULL,
  low_units BIGINT NOT NULL,
  CONSTRAINT pk_sales_hour PRIMARY KEY (provider, start_ms, listing_id, chain_id, asset, currency, decimals, state)
)
 WITHOUT ROWID;

CREATE INDEX ix_sales_hour_start ON sales_hour (start_ms);

CREATE TABLE sales_mark (
  id INTEGER NOT NULL,
  hour_ms BIGINT NOT NULL,
  marked_ms BIGINT NOT NULL,
  CONSTRAINT pk_sales_mark PRIMARY KEY (id)
);

CREATE INDEX ix_sales_mark_hour ON sales_mark (hour_ms);

CREATE TABLE schema_floor (
  id INTEGER NOT NULL,
  revision VARCHAR(32) NOT NULL,
  CONSTRAINT pk_schema_floor PRIMARY KEY (id),
  CONSTRAINT ck_schema_floor_one_row CHECK (id = 1)
);

INSERT INTO schema_floor (id, revision) VALUES (1, '0037_baseline');

CREATE TABLE search_block (
  feature TEXT NOT NULL,
  block BIGINT NOT NULL,
  listings BLOB NOT NULL,
  CONSTRAINT pk_search_block PRIMARY KEY (feature, block)
)
 WITHOUT ROWID;

CREATE TABLE search_spelling (
  spelling TEXT NOT NULL,
  word TEXT NOT NULL,
  CONSTRAINT pk_search_spelling PRIMARY KEY (spelling, word)
)
 WITHOUT ROWID;

CREATE INDEX ix_search_spelling_word ON search_spelling (word) WHERE spelling = word;

CREATE TABLE session (
  token_hash BLOB NOT NULL,
  address BLOB NOT NULL,
  chain_id BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_session PRIMARY KEY (token_hash)
);

CREATE INDEX ix_session_expires_ms ON session (expires_ms);

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
  CONSTRAINT pk_settlement_attempt PRIMARY KEY (tx_hash, chain_id)
);

CREATE INDEX ix_settlement_attempt_call_id ON settlement_attempt (call_id);

CREATE INDEX ix_settlement_attempt_spent ON settlement_attempt (chain_id, created_ms, listing_id, sender, nonce, cost_wei);

CREATE INDEX ix_settlement_attempt_open ON settlement_attempt (sender, chain_id, nonce) WHERE is_open;

CREATE TABLE signature_nonce (
  keyid VARCHAR(128) NOT NULL,
  nonce VARCHAR(128) NOT NULL,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_signature_nonce PRIMARY KEY (keyid, nonce)
);

CREATE INDEX ix_signature_nonce_expires_ms ON signature_nonce (expires_ms);

CREATE TABLE signin_nonce (
  nonce VARCHAR(128) NOT NULL,
  uri TEXT,
  expires_ms BIGINT NOT NULL,
  CONSTRAINT pk_signin_nonce PRIMARY KEY (nonce)
);

CREATE INDEX ix_signin_nonce_expires_ms ON signin_nonce (expires_ms);

CREATE TABLE stored_response (
  call_id VARCHAR(64) NOT NULL,
  payer BLOB NOT NULL,
  bytes BIGINT NOT NULL,
  sealed BLOB NOT NULL,
  created_ms BIGINT NOT NULL,
  provider BLOB NOT NULL,
  CONSTRAINT pk_stored_response PRIMARY KEY (call_id)
);

CREATE INDEX ix_stored_response_time ON stored_response (created_ms, call_id, bytes);

CREATE INDEX ix_stored_response_payer ON stored_response (payer, created_ms, call_id, bytes, provider);

CREATE INDEX ix_stored_response_provider ON stored_response (provider, created_ms, call_id, bytes, payer);

CREATE TABLE viewer (
  wallet BLOB NOT NULL,
  viewer BLOB NOT NULL,
  since_ms BIGINT NOT NULL,
  until_ms BIGINT NOT NULL,
  accepted_ms BIGINT,
  CONSTRAINT pk_viewer PRIMARY KEY (wallet, viewer)
);

CREATE INDEX ix_viewer_viewer ON viewer (viewer, since_ms);

CREATE INDEX ix_viewer_accepted ON viewer (viewer, accepted_ms);

CREATE TABLE wallet_block (
  wallet BLOB NOT NULL,
  reason TEXT NOT NULL,
  since_ms BIGINT NOT NULL,
  CONSTRAINT pk_wallet_block PRIMARY KEY (wallet)
);

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

CREATE TABLE webhook_delivery (
  endpoint_no BIGINT NOT NULL,
  event_no BIGINT NOT NULL,
  state VARCHAR(12) NOT NULL,
  message_no BIGINT,
  settled_ms BIGINT,
  CONSTRAINT pk_webhook_delivery PRIMARY KEY (endpoint_no, event_no)
);

CREATE INDEX ix_webhook_delivery_event ON webhook_delivery (event_no);

CREATE INDEX ix_webhook_delivery_pending ON webhook_delivery (endpoint_no, message_no, event_no) WHERE state = 'pending';

CREATE INDEX ix_webhook_delivery_settled ON webhook_delivery (settled_ms) WHERE state <> 'pending';

CREATE INDEX ix_webhook_delivery_state ON webhook_delivery (endpoint_no, state, event_no);

CREATE TABLE webhook_endpoint (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id VARCHAR(64) NOT NULL,
  wallet BLOB NOT NULL,
  network TEXT NOT NULL,
  url TEXT NOT NULL,
  origin TEXT NOT NULL,
  types TEXT NOT NULL,
  state VARCHAR(12) NOT NULL,
  reason VARCHAR(32),
  secret_sealed BLOB,
  challenge TEXT NOT NULL,
  tries INTEGER NOT NULL,
  challenge_ms BIGINT,
  challenge_status INTEGER,
  challenge_error VARCHAR(32),
  due_ms BIGINT,
  is_slow BOOLEAN NOT NULL,
  created_ms BIGINT NOT NULL,
  active_from_ms BIGINT,
  gap_from_ms BIGINT,
  gap_to_ms BIGINT
);

CREATE UNIQUE INDEX uq_webhook_endpoint_id ON webhook_endpoint (id);

CREATE INDEX ix_webhook_endpoint_wallet ON webhook_endpoint (wallet);

CREATE INDEX ix_webhook_endpoint_url ON webhook_endpoint (url) WHERE state IN ('active', 'stopped');

CREATE INDEX ix_webhook_endpoint_unconfirmed ON webhook_endpoint (network) WHERE state = 'unconfirmed';

CREATE INDEX ix_webhook_endpoint_due ON webhook_endpoint (due_ms) WHERE due_ms IS NOT NULL;

CREATE TABLE webhook_event (
  number INTEGER NOT NULL,
  id VARCHAR(64) NOT NULL,
  wallet BLOB NOT NULL,
  type VARCHAR(32) NOT NULL,
  subject VARCHAR(160) NOT NULL,
  state VARCHAR(32),
  units BIGINT,
  at_ms BIGINT NOT NULL,
  data TEXT,
  CONSTRAINT pk_webhook_event PRIMARY KEY (number)
);

CREATE UNIQUE INDEX uq_webhook_event_id ON webhook_event (id);

CREATE INDEX ix_webhook_event_new ON webhook_event (number) WHERE data IS NULL;

CREATE TABLE webhook_generation (
  id INTEGER NOT NULL,
  number BIGINT NOT NULL,
  CONSTRAINT pk_webhook_generation PRIMARY KEY (id)
);

INSERT INTO webhook_generation (id, number) VALUES (1, 1);

CREATE TABLE webhook_message (
  number INTEGER NOT NULL,
  endpoint_no BIGINT NOT NULL,
  id VARCHAR(64) NOT NULL,
  state VARCHAR(12) NOT NULL,
  attempts INTEGER NOT NULL,
  first_ms BIGINT NOT NULL,
  due_ms BIGINT NOT NULL,
  last_ms BIGINT,
  last_status INTEGER,
  last_error TEXT,
  CONSTRAINT pk_webhook_message PRIMARY KEY (number)
);

CREATE INDEX ix_webhook_message_endpoint ON webhook_message (endpoint_no);

CREATE INDEX ix_webhook_message_open ON webhook_message (endpoint_no, due_ms) WHERE state = 'pending';

CREATE INDEX ix_webhook_message_settled ON webhook_message (last_ms) WHERE state <> 'pending';

CREATE TABLE channel (
  "key" INTEGER NOT NULL,
  chain_id BIGINT NOT NULL,
  channel_id BLOB NOT NULL,
  payment_id BIGINT NOT NULL,
  payer BLOB NOT NULL,
  payer_authorizer BLOB NOT NULL,
  receiver BLOB NOT NULL,
  receiver_authorizer BLOB NOT NULL,
  token BLOB NOT NULL,
  decimals INTEGER NOT NULL,
  withdraw_delay BIGINT NOT NULL,
  salt BLOB NOT NULL,
  state VARCHAR(12) NOT NULL,
  start_units BIGINT NOT NULL,
  lacking_units BIGINT NOT NULL,
  announced BIGINT NOT NULL,
  published BIGINT NOT NULL,
  spent_ceiling BIGINT,
  spent_signature BLOB,
  waiting_ceiling BIGINT,
  waiting_signature BLOB,
  candidate_ceiling BIGINT,
  candidate_signature BLOB,
  balance BIGINT NOT NULL,
  total_claimed BIGINT NOT NULL,
  refund_nonce BIGINT NOT NULL,
  withdrawal_amount BIGINT NOT NULL,
  withdrawal_since_s BIGINT NOT NULL,
  block_number BIGINT NOT NULL,
  reserved_call VARCHAR(64),
  opened_ms BIGINT NOT NULL,
  unused_since_ms BIGINT,
  settled BIGINT NOT NULL,
  CONSTRAINT pk_channel PRIMARY KEY ("key"),
  CONSTRAINT uq_channel_id UNIQUE (channel_id, chain_id),
  CONSTRAINT fk_channel_payment FOREIGN KEY(payment_id) REFERENCES payment (id)
);

CREATE UNIQUE INDEX uq_channel_payment_id ON channel (payment_id);

CREATE INDEX ix_channel_payer ON channel (payer, chain_id, token);

CREATE INDEX ix_channel_receiver ON channel (receiver, token, chain_id);

CREATE INDEX ix_channel_reserved ON channel (reserved_call) WHERE reserved_call IS NOT NULL;

CREATE INDEX ix_channel_unused ON channel (chain_id, unused_since_ms) WHERE unused_since_ms IS NOT NULL;

CREATE TABLE listing_document (
  listing_seq BIGINT NOT NULL,
  openapi TEXT NOT NULL,
  CONSTRAINT pk_listing_document PRIMARY KEY (listing_seq),
  CONSTRAINT fk_listing_document_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_network (
  chain_id BIGINT NOT NULL,
  listing_seq BIGINT NOT NULL,
  CONSTRAINT pk_listing_network PRIMARY KEY (chain_id, listing_seq),
  CONSTRAINT fk_listing_network_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_network_listing ON listing_network (listing_seq);

CREATE TABLE listing_ownership (
  listing_seq INTEGER NOT NULL,
  origin VARCHAR(300) NOT NULL,
  method VARCHAR(20),
  signer BLOB,
  verified_ms BIGINT,
  checked_ms BIGINT,
  failures INTEGER NOT NULL,
  owned_by_another BOOLEAN NOT NULL,
  CONSTRAINT pk_listing_ownership PRIMARY KEY (listing_seq),
  CONSTRAINT fk_listing_ownership_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_ownership_origin ON listing_ownership (origin, listing_seq) WHERE verified_ms IS NOT NULL;

CREATE INDEX ix_listing_ownership_unproved ON listing_ownership (origin, listing_seq) WHERE verified_ms IS NULL;

CREATE INDEX ix_listing_ownership_due ON listing_ownership (checked_ms, listing_seq) WHERE verified_ms IS NOT NULL;

CREATE INDEX ix_listing_ownership_verified ON listing_ownership (listing_seq) WHERE verified_ms IS NOT NULL;

CREATE TABLE listing_payee_head (
  listing_seq BIGINT NOT NULL,
  version BIGINT NOT NULL,
  chain_id BIGINT NOT NULL,
  head_s BIGINT NOT NULL,
  CONSTRAINT pk_listing_payee_head PRIMARY KEY (listing_seq, version, chain_id),
  CONSTRAINT fk_listing_payee_head_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_quality (
  listing_seq INTEGER NOT NULL,
  calls BIGINT NOT NULL,
  success_ppm INTEGER NOT NULL,
  p50_ms BIGINT,
  p95_ms BIGINT,
  costs TEXT,
  day INTEGER NOT NULL,
  score BIGINT NOT NULL,
  CONSTRAINT pk_listing_quality PRIMARY KEY (listing_seq),
  CONSTRAINT fk_listing_quality_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_quality_success ON listing_quality (success_ppm, listing_seq);

CREATE INDEX ix_listing_quality_score ON listing_quality (score, listing_seq);

CREATE INDEX ix_listing_quality_stale ON listing_quality (day, listing_seq);

CREATE TABLE listing_search (
  listing_seq INTEGER NOT NULL,
  weights TEXT NOT NULL,
  CONSTRAINT pk_listing_search PRIMARY KEY (listing_seq),
  CONSTRAINT fk_listing_search_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_tag (
  tag TEXT NOT NULL,
  listing_seq BIGINT NOT NULL,
  CONSTRAINT pk_listing_tag PRIMARY KEY (tag, listing_seq),
  CONSTRAINT fk_listing_tag_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_tag_listing ON listing_tag (listing_seq);

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
  until_ms BIGINT,
  other_paths VARCHAR(10) NOT NULL,
  methods TEXT NOT NULL,
  described TEXT NOT NULL,
  status VARCHAR(10) NOT NULL,
  metering TEXT,
  free_count INTEGER,
  free_per_s INTEGER,
  CONSTRAINT pk_listing_terms PRIMARY KEY (listing_seq, version),
  CONSTRAINT ck_listing_terms_ends_after_it_begins CHECK (until_ms IS NULL OR until_ms >= since_ms),
  CONSTRAINT fk_listing_terms_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE TABLE listing_vector (
  listing_seq BIGINT NOT NULL,
  bits BLOB NOT NULL,
  change BIGINT NOT NULL,
  due_revision BIGINT,
  CONSTRAINT pk_listing_vector PRIMARY KEY (listing_seq),
  CONSTRAINT fk_listing_vector_listing FOREIGN KEY(listing_seq) REFERENCES listing (seq)
);

CREATE INDEX ix_listing_vector_change ON listing_vector (change);

CREATE INDEX ix_listing_vector_due ON listing_vector (listing_seq) WHERE due_revision IS NOT NULL;

CREATE TABLE call (
  id VARCHAR(64) NOT NULL,
  terms_id BIGINT NOT NULL,
  listing_key BIGINT NOT NULL,
  provider BLOB NOT NULL,
  payer BLOB,
  payment_id BIGINT,
  channel_id BIGINT,
  state VARCHAR(10) NOT NULL,
  rail VARCHAR(10) NOT NULL,
  epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  cut VARCHAR(10) NOT NULL,
  clock_releases BOOLEAN NOT NULL,
  needs_locks BOOLEAN DEFAULT 0 NOT NULL,
  price_units BIGINT NOT NULL,
  actual_units BIGINT,
  quantities TEXT,
  taken_units BIGINT NOT NULL,
  http_status INTEGER,
  upstream_status INTEGER,
  request_bytes BIGINT,
  response_bytes BIGINT,
  latency_ms BIGINT,
  upstream_latency_ms BIGINT,
  delivery VARCHAR(10),
  created_ms BIGINT NOT NULL,
  moved_ms BIGINT NOT NULL,
  completed_ms BIGINT,
  owner_id VARCHAR(64) NOT NULL,
  path TEXT NOT NULL,
  digest BLOB NOT NULL,
  request_id VARCHAR(128) NOT NULL,
  nonce BLOB,
  nonce_tx_hash BLOB,
  nonce_chain_id BIGINT,
  idempotency_key TEXT,
  error TEXT,
  budget_nano BIGINT,
  budget_ms BIGINT,
  CONSTRAINT pk_call PRIMARY KEY (id),
  CONSTRAINT ck_call_taken_within_price CHECK (taken_units >= 0 AND taken_units <= price_units),
  CONSTRAINT ck_call_actual_within_price CHECK (actual_units IS NULL OR (actual_units >= 0 AND actual_units <= price_units)),
  CONSTRAINT ck_call_actual_measured CHECK ((actual_units IS NULL) = (coalesce(quantities, '') = '')),
  CONSTRAINT fk_call_terms FOREIGN KEY(terms_id) REFERENCES call_terms (id),
  CONSTRAINT fk_call_payment FOREIGN KEY(payment_id) REFERENCES payment (id),
  CONSTRAINT fk_call_channel FOREIGN KEY(channel_id) REFERENCES channel ("key")
);

CREATE INDEX ix_call_payer_time ON call (payer, created_ms);

CREATE INDEX ix_call_provider_time ON call (provider, created_ms);

CREATE INDEX ix_call_payment_time ON call (payment_id, created_ms);

CREATE INDEX ix_call_payer_listing ON call (payer, listing_key, created_ms);

CREATE INDEX ix_call_provider_listing ON call (provider, listing_key, created_ms);

CREATE UNIQUE INDEX uq_call_nonce ON call (nonce, nonce_tx_hash, nonce_chain_id) WHERE nonce IS NOT NULL AND state <> 'released';

CREATE INDEX ix_call_repeatable ON call (payment_id, digest) WHERE state IN ('forwarding', 'unknown') OR cut = 'cut';

CREATE INDEX ix_call_forwarding ON call (owner_id) WHERE state = 'forwarding';

CREATE INDEX ix_call_unknown ON call (moved_ms) WHERE state = 'unknown';

CREATE INDEX ix_call_settling ON call (owner_id) WHERE state = 'settling';

CREATE INDEX ix_call_unmeasured ON call (payment_id) WHERE quantities = '' AND state IN ('consumed', 'reorged');

CREATE INDEX ix_call_keyed ON call (payer, idempotency_key, created_ms) WHERE idempotency_key IS NOT NULL;

CREATE INDEX ix_call_moving ON call (payer) WHERE state IN ('forwarding', 'settling', 'unknown') AND payment_id IS NULL AND rail IN ('x402', 'mpp', 'channel');

CREATE INDEX ix_call_payer_failed ON call (payer, created_ms, listing_key, state, upstream_status) WHERE state = 'released' OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400));

CREATE INDEX ix_call_payer_unknown ON call (payer, created_ms, listing_key) WHERE state = 'unknown';

CREATE INDEX ix_call_provider_failed ON call (provider, created_ms, listing_key, state, upstream_status) WHERE state = 'released' OR (state IN ('consumed', 'reorged') AND (upstream_status IS NULL OR upstream_status >= 400));

CREATE INDEX ix_call_provider_unknown ON call (provider, created_ms, listing_key) WHERE state = 'unknown';

CREATE INDEX ix_call_reorged ON call (payer, created_ms, id) WHERE state = 'reorged';

CREATE TABLE channel_claim_row (
  claim_id VARCHAR(64) NOT NULL,
  channel_id BIGINT NOT NULL,
  ceiling BIGINT NOT NULL,
  signature BLOB NOT NULL,
  total BIGINT NOT NULL,
  CONSTRAINT pk_channel_claim_row PRIMARY KEY (claim_id, channel_id),
  CONSTRAINT fk_channel_claim_row_claim FOREIGN KEY(claim_id) REFERENCES channel_claim (id),
  CONSTRAINT fk_channel_claim_row_channel FOREIGN KEY(channel_id) REFERENCES channel ("key")
);

CREATE INDEX ix_channel_claim_row_channel ON channel_claim_row (channel_id);

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
  settled_block BIGINT,
  client_network BLOB,
  channel_id BIGINT,
  deposit_salt BLOB,
  CONSTRAINT pk_authorization PRIMARY KEY (nonce, chain_id, asset, payer),
  CONSTRAINT fk_authorization_call FOREIGN KEY(call_id) REFERENCES call (id),
  CONSTRAINT fk_authorization_channel FOREIGN KEY(channel_id) REFERENCES channel ("key")
);

CREATE UNIQUE INDEX uq_authorization_call_id ON authorization (call_id);

CREATE INDEX ix_authorization_deposit ON authorization (channel_id) WHERE channel_id IS NOT NULL;

CREATE INDEX ix_authorization_adrift ON authorization (looked_ms) WHERE is_adrift;

CREATE INDEX ix_authorization_settled ON authorization (payer, chain_id, settled_block) WHERE settled_block IS NOT NULL;

CREATE TABLE call_refund (
  call_id VARCHAR(64) NOT NULL,
  payment_id BIGINT NOT NULL,
  payer BLOB NOT NULL,
  provider BLOB NOT NULL,
  called_ms BIGINT NOT NULL,
  units BIGINT NOT NULL,
  is_credit BOOLEAN NOT NULL,
  is_reversed BOOLEAN NOT NULL,
  created_ms BIGINT NOT NULL,
  CONSTRAINT pk_call_refund PRIMARY KEY (call_id, payment_id),
  CONSTRAINT ck_call_refund_units_positive CHECK (units > 0),
  CONSTRAINT fk_call_refund_call FOREIGN KEY(call_id) REFERENCES call (id),
  CONSTRAINT fk_call_refund_payment FOREIGN KEY(payment_id) REFERENCES payment (id)
);

CREATE INDEX ix_call_refund_payment ON call_refund (payment_id);

CREATE INDEX ix_call_refund_payer ON call_refund (payer, called_ms);

CREATE INDEX ix_call_refund_provider ON call_refund (provider, called_ms);

CREATE UNIQUE INDEX uq_call_refund_in_force ON call_refund (call_id) WHERE NOT is_reversed;

CREATE TABLE call_topup (
  call_id VARCHAR(64) NOT NULL,
  payment_id BIGINT NOT NULL,
  units BIGINT NOT NULL,
  CONSTRAINT pk_call_topup PRIMARY KEY (call_id, payment_id),
  CONSTRAINT ck_call_topup_units_positive CHECK (units > 0),
  CONSTRAINT fk_call_topup_call FOREIGN KEY(call_id) REFERENCES call (id),
  CONSTRAINT fk_call_topup_payment FOREIGN KEY(payment_id) REFERENCES payment (id)
);

CREATE INDEX ix_call_topup_payment_id ON call_topup (payment_id);

CREATE TABLE repeat_nonce (
  nonce BLOB NOT NULL,
  tx_hash BLOB NOT NULL,
  chain_id BIGINT NOT NULL,
  call_id VARCHAR(64) NOT NULL,
  CONSTRAINT pk_repeat_nonce PRIMARY KEY (nonce, tx_hash, chain_id),
  CONSTRAINT fk_repeat_nonce_call FOREIGN KEY(call_id) REFERENCES call (id)
);
