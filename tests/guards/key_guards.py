"""Guards of the keys: what is sealed, what is made with a secret, and a change of it (threats K1, K4, K8)."""

from tests.guards.guard import guard

SEALER, KEYS, FRONTAGE = "storage/sealer.py", "secret_keys.py", "frontage.py"
HOUSE = "test_house.py::test_while_the_secret_key_changes_every_key_opens_and_is_published_and_the_first_is_in_use"
NO_LIST = "test_secret_keys.py::test_refuses_what_is_no_list_of_keys_without_repeating_any"

KEY_GUARDS = (
    guard(
        "K10",
        "only its owner reads a SQLite database",
        "storage/database.py",
        '        await self._run(self._writer, partial(keep_private, self.path), use="write")\n',
        "",
        test="storage/test_database.py::test_only_its_owner_reads_a_database_and_what_stands_beside_it",
    ),
    guard(
        "K10",
        "a restored database has not the rights of the one before",
        "storage/backup.py",
        "    keep_private(kept)\n",
        "    draft.chmod(database_path.stat().st_mode & 0o777)\n",
        test="cli/test_backups.py::test_a_restore_holds_everything_and_keeps_what_it_replaced",
    ),
    guard(
        "K1",
        "a seal is of its row",
        SEALER,
        "return name, cipher.decrypt(nonce, body, head + label)",
        "return name, cipher.decrypt(nonce, body, head + b'a')",
        test="storage/test_sealer.py::test_refuses_another_label",
    ),
    guard(
        "K4",
        "a key file is for its owner alone",
        KEYS,
        "if stat.S_IMODE(path.stat().st_mode) & 0o077:",
        "if False:",
        test="test_secret_keys.py::test_a_file_that_others_can_reach_is_refused",
    ),
    guard(
        "K4",
        "a key file is never written over",
        KEYS,
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_CREAT | os.O_TRUNC",
        test="test_secret_keys.py::test_a_made_file_holds_one_key_for_its_owner_alone_and_is_never_written_over",
    ),
    guard(
        "K4", "a secret key is no made-up number", KEYS, "if len(set(key)) < 8:", "if False:", test=NO_LIST
    ),
    guard(
        "K8", "a secret key stands once", KEYS, "if len(set(keys)) < len(keys):", "if False:", test=NO_LIST
    ),
    guard("K8", "there are few secret keys", KEYS, "if len(words) > KEYS_MAX:", "if False:", test=NO_LIST),
    guard(
        "K8",
        "the first secret key is the one in use",
        "settings.py",
        "secret_key=keys[0] if keys else None,",
        "secret_key=keys[-1] if keys else None,",
        test="test_settings.py::test_the_first_of_several_keys_is_the_one_in_use",
    ),
    guard(
        "K8",
        "every key opens what is sealed",
        SEALER,
        "{_name(each): AESGCM(each) for each in (key, *others)}",
        "{_name(each): AESGCM(each) for each in (key,)}",
        test="storage/test_sealer.py::test_what_gateways_seal_while_the_key_changes_opens_at_the_others",
    ),
    guard(
        "K8",
        "the first key seals",
        SEALER,
        "self._current = _name(key)",
        "self._current = _name((key, *others)[-1])",
        test="storage/test_sealer.py::test_the_first_key_seals_and_every_key_opens",
    ),
    guard(
        "K8",
        "a lone key seals as the release before can read",
        SEALER,
        "head = _BARE if len(self._ciphers) == 1 else _NAMED + self._current",
        "head = _NAMED + self._current",
        test="storage/test_sealer.py::test_a_lone_key_seals_as_the_release_before_can_read",
    ),
    guard(
        "K8",
        "a listing whose secret is lost is neither called nor sold",
        "gateway/refusals.py",
        "if listing.upstream_auth is not None and listing.upstream_auth.value is None:",
        "if False:",
        test="gateway/test_opening.py::test_says_what_is_closed_in_the_order_of_the_contract",
    ),
    guard(
        "K8",
        "a secret that does not open outlives an edit",
        "storage/catalog_store.py",
        "return {}  # it stays as it is stored: the key that opens it may come back",
        'return {"auth_sealed": None}',
        test="storage/test_catalog_store.py::test_a_secret_that_does_not_open_outlives_every_edit_but_one_that_sets_another",
    ),
    guard(
        "K8",
        "a challenge of an older secret is ours",
        "payments/mpp.py",
        "for secret in (self.secret, *self.other_secrets)",
        "for secret in (self.secret,)",
        test="payments/test_mpp.py::test_a_challenge_of_before_the_secret_was_changed_is_ours_while_the_old_one_is_known",
    ),
    guard(
        "K8",
        "every key that signs offers is published",
        FRONTAGE,
        "signers=[one.address for one in self._notaries]",
        "signers=[self._notary.address]",
        test=HOUSE,
    ),
    guard(
        "K8",
        "the sealer of a gateway knows every key",
        "house.py",
        "self.sealer = Sealer(key, others=others, entropy=secrets.token_bytes)",
        "self.sealer = Sealer(key, entropy=secrets.token_bytes)",
        test=HOUSE,
    ),
    guard(
        "K8",
        "a secret that opens with no key is told by its listing",
        "cli/key_change.py",
        "        if secrets_.lost:\n",
        "        if False:\n",
        test="cli/test_key_change.py::test_a_key_that_was_taken_out_too_early_is_told_with_the_listings",
    ),
)
