// Pay and try: calls one operation, pays for it from a wallet where it must be paid, and prints every step on the toll ticket.
//
// Two rules carry it. Nothing is signed for another payee, token, chain or amount than the page has shown. And while a payment may still move, it is sent again as it is:
// a second one is never signed, also after a reload, because the payment is written to `sessionStorage` before the wallet is asked.

import {
  CallSlip, RecoveryFields, bodyOf, decode, encode, enterHash, followChoices, format, isInternal, isMeasuredLater, isNotPaid, isOfGateway, isOutdated, mayGiveUp, parse, paymentHeaders, readForm, readOutcome, readProblem, readState,
  readStored, restoreFirst, sendCall, showAnswer,
} from "./call_slip.js";
import { CALL_TYPES, GatewayRefused, TRANSFER_TYPES, WalletRefused, connect, findWallets, makeNonce, moveToChain, readBalance, readReceipt, requireChain, sendTransfer, signTyped } from "./wallet.js";

const DEAD_MS = 500;
const ATTEMPTS_MAX = 60;
const WAIT_MAX_S = 30;
const RECEIPT_POLL_MS = 1_000;
const BOUND_VALID_S = 240;

/** @typedef {import("./call_slip.js").Way} Way */
/** @typedef {import("./call_slip.js").Intent} Intent */
/** @typedef {import("./call_slip.js").CallRequest} CallRequest */
/** @typedef {import("./call_slip.js").Problem} Problem */
/** @typedef {import("./call_slip.js").Schemas["PaymentOption"]} PaymentOption */

/** The flow ended with a sentence for the reader. */
class Stop extends Error {}

class TryPanel {
  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.form = form;
    this.settings = JSON.parse(form.dataset.call ?? "{}");
    /** @type {Record<string, string>} */
    this.words = JSON.parse(form.dataset.words ?? "{}");
    /** @type {Way[]} */
    this.ways = this.settings.ways;
    this.button = /** @type {HTMLButtonElement} */ (form.querySelector("[data-pay]"));
    this.answer = /** @type {HTMLElement} */ (document.querySelector("[data-answer]"));
    this.recovery = new RecoveryFields(/** @type {HTMLElement} */ (form.querySelector("[data-recovery]")));
    this.advice = /** @type {HTMLElement} */ (form.querySelector("[data-no-wallet]"));
    this.anew = /** @type {HTMLElement} */ (form.querySelector("[data-anew]"));
    this.slip = new CallSlip(/** @type {HTMLElement} */ (document.querySelector("[data-slip]")));
    this.place = `tollway ${this.settings.apiId}`;
    /** @type {Map<string, string>} the amount that the reader has agreed to, by way */
    this.agreed = new Map(this.ways.map((way) => [way.id, way.amount]));
    this.isBusy = this.isConnected = this.hasNoWallet = false;
    /** Writes the body where it is a form or a file. */
    this.bodies = form.querySelector("[data-place=form], [data-place=body]") && import("./form_body.js");
    /** @type {((text: string) => void) | undefined} */
    this.clock = undefined;
    // A script's `click()` and `requestSubmit()` cause a trusted submit event, so it is the click that must be trusted.
    let isPressed = false;
    this.button.addEventListener("click", (event) => {
      isPressed = event.isTrusted;
      if (!this.leadsToPrograms()) return;
      event.preventDefault();
      document.getElementById("snippets")?.focus();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const isReal = isPressed;
      isPressed = false;
      if (isReal && !this.isBusy && !this.button.disabled) void this.run(() => this.start());
    });
    addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.rest());
    addEventListener("focus", () => this.rest());
    form.addEventListener("input", () => this.readIntent() === null && this.showPrice());
    form.querySelector("[data-find-credit]")?.addEventListener("click", (event) => {
      if (event.isTrusted && !this.isBusy && this.readIntent() === null) void this.run(() => this.lookForCredit());
    });
    form.hidden = false;
    this.rest();
    const intent = this.readIntent();
    if (intent) this.offerToAskAgain(intent);
    addEventListener("eip6963:announceProvider", () => this.nameStep(false));
    if (this.ways.length) void findWallets().then((wallets) => this.nameStep(!wallets.length));
  }

  /** Writes on the button what a click does with the wallets of this browser. @param {boolean} hasNoWallet */
  nameStep(hasNoWallet) {
    this.hasNoWallet = hasNoWallet;
    this.advice.textContent = hasNoWallet ? this.say("noWallet") : "";
    if (!this.isBusy && this.readIntent() === null) this.showPrice();
  }

  /** The button is dead for a moment: a click meant for something else must not pay. */
  rest() {
    this.button.disabled = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.button.disabled = this.isBusy;
    }, DEAD_MS);
  }

  /** @param {string} key @param {...string} given */
  say(key, ...given) {
    return given.reduce((text, value, position) => text.replaceAll(`{${position}}`, value), this.words[key] ?? key);
  }

  /** Runs a flow with the button disabled, and prints how it ended. @param {() => Promise<void>} flow */
  async run(flow) {
    this.isBusy = this.button.disabled = true;
    this.endNotes();
    try {
      await flow();
    } catch (error) {
      this.slip.note(this.explain(error), true);
    } finally {
      this.isBusy = false;
      this.rest();
      this.nameStep(this.hasNoWallet);
    }
  }

  /** @param {unknown} error */
  explain(error) {
    if (error instanceof Stop) return error.message;
    if (error instanceof Error && error.name === "BodyRefused") return this.say(error.message, String(this.settings.bodyBytesMax >> 10));
    if (error instanceof GatewayRefused) return error.message || this.say("unreachable");
    if (error instanceof WalletRefused) {
      const way = this.chosenWay();
      const given = way ? [way.name, String(way.chainId)] : [];
      if (error.kind === "failed") return this.say("walletFailed", error.message);
      return this.say(error.kind, ...given);
    }
    return this.say("unreachable");
  }

  chosenWay() {
    const chosen = new FormData(this.form).get("way");
    return this.ways.find((way) => way.id === chosen) ?? this.ways[0];
  }

  /** Without a wallet and a waiting payment a click leads to the code for programs. */
  leadsToPrograms() {
    return this.hasNoWallet && !this.isBusy && this.readIntent() === null;
  }

  /** The button names what a click does and pays: for a transaction, all its calls. */
  showPrice() {
    const way = this.chosenWay();
    const step = !way ? "call" : this.leadsToPrograms() ? "fromProgram" : this.isConnected ? "pay" : "connectAndPay";
    this.button.textContent = this.say(step, ...(way ? [this.upTo(this.priceOf(way, this.agreed.get(way.id) ?? way.amount, this.countCalls(way)))] : []));
  }

  /** How many calls a click pays for. What an earlier transaction left pays one. @param {Way} way */
  countCalls(way) {
    if (way.rail !== "tx" || this.findCredit(way, this.agreed.get(way.id) ?? way.amount)) return 1;
    return Math.max(1, Math.min(1000, Math.floor(Number(new FormData(this.form).get("calls") ?? 1)) || 1));
  }

  // ---- The steps.

  /** @returns {Promise<void>} */
  async start() {
    const known = this.readIntent();
    if (known) return this.resume(known);
    // Everything that the reader has chosen is read at the click: the fields may change while the gateway answers.
    const request = readForm(this.form, this.settings);
    const way = this.chosenWay();
    const calls = way ? this.countCalls(way) : 1;
    await (await this.bodies)?.addBody(request, this.form, this.settings.bodyBytesMax);
    this.slip.clear();
    this.answer.replaceChildren();
    const response = await sendCall(this.settings.apiId, request, {});
    const terms = await readProblem(response);
    if (response.status !== 402 || !isOfGateway(response)) return this.finishUnpaid(response, terms);
    if (!terms || !way) throw new Stop(terms ? this.say("noWay") : this.say("differs"));
    const option = this.compare(way, terms);
    this.slip.line(this.words.price, this.upTo(this.priceOf(way, option.amount)));
    if (calls > 1) this.slip.line(this.words.total, this.priceOf(way, option.amount, calls));
    this.slip.line(this.words.to, option.payTo);
    const credit = this.findCredit(way, option.amount);
    if (credit) return this.payByCredit(way, option, request, credit);
    const { provider, from } = await this.openWallet(way);
    if (way.rail === "x402") return this.payBySignature(way, option, request, response, provider, from);
    return this.payByTransaction(way, option, request, provider, from, calls);
  }

  /** A call that needs no payment, or that is refused. @param {Response} response @param {Problem | null} problem */
  async finishUnpaid(response, problem) {
    if (problem) throw this.describe(problem);
    if (response.type === "opaqueredirect") throw new Stop(this.say("redirect"));
    if (readState(response) === null || isOfGateway(response)) throw new Stop(this.say("notGateway"));
    this.slip.line(this.words.price, this.words.free);
    this.printHead(response);
    this.slip.stamp("free", this.words.FREE);
    await showAnswer(response, this.answer, this.words);
  }

  /** The option of a 402 for the chosen way. Another payee or token stops; another price is asked for again. @param {Way} way @param {Problem} terms @returns {PaymentOption} */
  compare(way, terms) {
    const options = Array.isArray(terms.payment?.options) ? terms.payment.options : [];
    const same = options.filter((one) => one.rail === way.rail && one.chainId === way.chainId && lower(one.token) === lower(way.token));
    if (!same.length) throw new Stop(this.say(options.length ? "differs" : "noWay"));
    const option = same.find((one) => lower(one.payTo) === lower(way.payTo));
    if (!option || option.decimals !== way.decimals || !/^[0-9]{1,78}$/.test(option.amount)) throw new Stop(this.say("differs"));
    const agreed = this.agreed.get(way.id) ?? way.amount;
    if (option.amount !== agreed) {
      this.agreed.set(way.id, option.amount);
      this.showPrice();
      throw new Stop(this.say("dearer", this.priceOf(way, option.amount), this.priceOf(way, agreed)));
    }
    return option;
  }

  /** @param {Way} way */
  async openWallet(way) {
    const wallets = await findWallets();
    if (!wallets.length) throw new Stop(this.say("noWallet"));
    const position = wallets.length > 1 ? await this.slip.choose(this.words.choose, wallets.map((one) => one.name)) : 0;
    const provider = wallets[position];
    const onSilence = () => void this.slip.note(this.say("silent"));
    const from = await connect(provider, onSilence);
    this.isConnected = true;
    this.slip.line(this.words.from, from);
    await moveToChain(provider, way, onSilence);
    this.slip.line(this.words.network, way.name);
    return { provider, from };
  }

  /** @param {Way} way @param {import("./wallet.js").Wallet} provider @param {string} from @param {bigint} amount */
  async checkBalance(way, provider, from, amount) {
    if (!way.token) return;
    const balance = await readBalance(provider, way.token, from);
    if (balance === null || balance >= amount) return;
    throw new Stop(this.say("tooLittle", this.priceOf(way, String(balance)), this.priceOf(way, String(amount)), way.name, from));
  }

  /** Account and chain must be those on the ticket at the moment of signing. @param {import("./wallet.js").Wallet} provider @param {string} from @param {Way} way */
  async keepAccount(provider, from, way) {
    const now = await connect(provider, () => {});
    if (lower(now) !== lower(from)) throw new Stop(this.say("accountChanged"));
    await requireChain(provider, way);
  }

  // ---- Rail x402.

  /** @param {Way} way @param {PaymentOption} option @param {CallRequest} request @param {Response} response @param {import("./wallet.js").Wallet} provider @param {string} from */
  async payBySignature(way, option, request, response, provider, from) {
    await this.checkBalance(way, provider, from, BigInt(option.amount));
    const required = decode(response.headers.get("payment-required") ?? "");
    const accepted = (required?.accepts ?? []).find(
      (/** @type {any} */ one) => one.scheme === "exact" && one.network === option.network && lower(one.asset) === lower(option.token) && lower(one.payTo) === lower(option.payTo) && one.amount === option.amount,
    );
    if (!accepted) throw new Stop(this.say("differs"));
    const authorization = {
      from,
      to: option.payTo,
      value: option.amount,
      validAfter: "0",
      validBefore: String(Math.floor(Date.now() / 1000) + Math.min(accepted.maxTimeoutSeconds, 900)),
      nonce: makeNonce(),
    };
    await this.keepAccount(provider, from, way);
    /** @type {Intent} */
    const intent = { rail: "x402", state: "signing", request, key: crypto.randomUUID(), from, way, price: this.priceOf(way, option.amount), amount: option.amount };
    this.writeIntent(intent);
    try {
      const domain = { name: accepted.extra.name, version: accepted.extra.version, chainId: way.chainId, verifyingContract: option.token };
      const signature = await signTyped(provider, from, { types: TRANSFER_TYPES, primaryType: "TransferWithAuthorization", domain, message: authorization }, () => void this.slip.note(this.say("silent")));
      const payment = { x402Version: 2, resource: required.resource, accepted, payload: { signature, authorization }, extensions: required.extensions };
      intent.header = encode(payment);
    } catch (error) {
      this.forgetIntent(); // the page has no signature, so nothing can move
      throw error;
    }
    intent.state = "shown";
    this.writeIntent(intent);
    return this.show(intent);
  }

  // ---- Rail tx.

  /** @param {Way} way @param {PaymentOption} option @param {CallRequest} request @param {import("./wallet.js").Wallet} provider @param {string} from @param {number} calls */
  async payByTransaction(way, option, request, provider, from, calls) {
    const amount = BigInt(option.amount) * BigInt(calls);
    await import("./keccak.js"); // the call after the transfer needs it
    await this.checkBalance(way, provider, from, amount);
    await this.keepAccount(provider, from, way);
    /** @type {Intent} */
    const intent = { rail: "tx", state: "sending", request, key: crypto.randomUUID(), from, way, price: this.priceOf(way, option.amount), amount: option.amount, sentMs: Date.now() };
    this.writeIntent(intent);
    try {
      intent.transaction = await sendTransfer(provider, { from, chainId: way.chainId, token: way.token, to: option.payTo, amount }, () => void this.slip.note(this.say("silent")));
    } catch (error) {
      if (error instanceof WalletRefused && error.kind === "declined") this.forgetIntent();
      else this.offerToAskAgain(intent);
      throw error;
    }
    intent.sentMs = Date.now();
    this.writeIntent(intent);
    return this.proveTransaction(intent, provider);
  }

  /** Waits until the transfer is mined, then signs for this one request and shows both. @param {Intent} intent @param {import("./wallet.js").Wallet} provider */
  async proveTransaction(intent, provider) {
    const hash = intent.transaction ?? "";
    this.slip.line(this.words.sent, hash, intent.way.explorer && intent.way.explorer + hash);
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
      const isSuccess = await readReceipt(provider, hash);
      if (isSuccess === false) throw this.endFailed(intent);
      if (isSuccess) return this.showTransaction(intent, provider);
      await pause(RECEIPT_POLL_MS);
    }
    this.offerToAskAgain(intent); // it may be replaced or dropped: `resumeTransaction` asks
  }

  /** @param {Intent} intent @param {import("./wallet.js").Wallet} provider */
  async showTransaction(intent, provider) {
    intent.header = await this.signCall(intent, provider);
    intent.state = "shown";
    this.writeIntent(intent);
    return this.show(intent);
  }

  /** The bound signature: it counts for this request and no other. @param {Intent} intent @param {import("./wallet.js").Wallet} provider */
  async signCall(intent, provider) {
    const { request, way } = intent;
    const validUntil = Math.floor(Date.now() / 1000) + BOUND_VALID_S;
    const nonce = makeNonce();
    const bodyHash = (await import("./keccak.js")).keccak256(bodyOf(request));
    const message = { gateway: this.settings.gateway, apiId: this.settings.apiId, method: request.method, target: request.target, bodyHash, transaction: intent.transaction, validUntil: String(validUntil), nonce };
    const domain = { name: "Tollway", version: "1", chainId: way.chainId };
    await this.keepAccount(provider, intent.from, way);
    const signature = await signTyped(provider, intent.from, { types: CALL_TYPES, primaryType: "PaidCall", domain, message }, () => void this.slip.note(this.say("silent")));
    return JSON.stringify({ signature, parameters: `v=1;validUntil=${validUntil};nonce=${nonce};bodyHash=${bodyHash}` });
  }

  /** A call on what an earlier transaction of this page has left. @param {Way} way @param {PaymentOption} option @param {CallRequest} request @param {{ transaction: string, from: string, text: string }} credit */
  async payByCredit(way, option, request, credit) {
    this.slip.line(this.words.credit, credit.text);
    const { provider, from } = await this.openWallet(way);
    if (lower(from) !== lower(credit.from)) throw new Stop(this.say("accountChanged"));
    /** @type {Intent} */
    const intent = { rail: "credit", state: "shown", request, key: crypto.randomUUID(), from, way, price: this.priceOf(way, option.amount), amount: option.amount, transaction: credit.transaction };
    intent.header = await this.signCall(intent, provider);
    this.writeIntent(intent);
    return this.show(intent);
  }

  // ---- Sending, again and again until the gateway knows.

  /** @param {Intent} intent */
  async show(intent) {
    this.endNotes();
    this.slip.note(this.say("sending"));
    let isNoted = false;
    let needed = "";
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
      let response = null;
      try {
        response = await sendCall(this.settings.apiId, intent.request, paymentHeaders(intent));
      } catch {
        response = null; // no response is no answer: the payment may have arrived
      }
      if (response?.type === "opaqueredirect") return this.keepRedirected(intent);
      const problem = response && (await readProblem(response));
      const state = response && readOutcome(response, problem);
      if (state && needed) this.slip.update(this.words.confirmations, this.say("confirmed", needed, needed));
      if (response && state) return this.finish(intent, response, problem, state);
      if (response && !isNoted && isInternal(problem)) {
        isNoted = true;
        this.slip.note(this.say("notKnown"));
      }
      if (problem?.code === "payment_pending" && Number.isInteger(problem.confirmationsNeeded)) {
        needed = String(problem.confirmationsNeeded);
        this.slip.update(this.words.confirmations, this.say("confirmed", String(problem.confirmations), needed));
      }
      const wait = response ? Math.ceil(Number(response.headers.get("retry-after") ?? 3)) || 3 : 3;
      if (wait > WAIT_MAX_S) break;
      await this.countDown(Math.max(1, wait));
    }
    this.offerToAskAgain(intent);
  }

  /** Removes what the ticket says of the steps before. */
  endNotes() {
    this.clock = undefined;
    this.slip.endNotes();
  }

  /** @param {number} seconds */
  async countDown(seconds) {
    this.clock ??= this.slip.note("");
    for (let left = seconds; left > 0; left--) {
      this.clock(this.say("waiting", String(left)));
      await pause(1_000);
    }
  }

  /** A redirect hides whether the call was charged, so its payment stays until the reader asks for a new one. @param {Intent} intent */
  keepRedirected(intent) {
    intent.isRedirected = true;
    this.writeIntent(intent);
    this.offerToAskAgain(intent);
  }

  /** @param {Intent} intent @param {Response} response @param {Problem | null} problem @param {import("./call_slip.js").PaymentState} state */
  async finish(intent, response, problem, state) {
    this.endNotes();
    if (isNotPaid(response.status, problem, state) && this.returnToFirst(intent)) {
      this.slip.note(this.say("firstKept"), true);
    } else {
      this.keepCredit(intent, response, state);
      if (state === "held" && !isMeasuredLater(response, problem)) this.offerToAskAgain(intent);
      else this.forgetIntent();
    }
    if (problem && state !== "held" && state !== "released") throw this.describe(problem);
    this.printHead(response);
    const receipt = decode(response.headers.get("payment-response") ?? "");
    const hash = typeof receipt?.transaction === "string" && /^0x[0-9a-f]{64}$/.test(receipt.transaction) ? receipt.transaction : intent.rail === "x402" ? null : intent.transaction;
    if (hash) this.slip.line(this.words.transaction, hash, intent.way.explorer && intent.way.explorer + hash);
    if (isMeasuredLater(response, problem)) this.endStreamed(intent);
    else this.stamp(state, intent, this.showCost(intent, response, state));
    if (problem) this.slip.note(problem.detail, true);
    else await showAnswer(response, this.answer, this.words);
  }

  /** The price is decided at the end of the answer. @param {Intent} intent */
  endStreamed(intent) {
    this.slip.note(this.say("measuring", intent.price));
    this.slip.stamp("held", this.words.HELD);
  }

  /** Shows what a metered call cost and gave back. Returns the cost. @param {Intent} intent @param {Response} response @param {string} state */
  showCost(intent, response, state) {
    const { way, amount } = intent;
    const cost = parse((response.headers.get("tollway-price") ?? "").split(" ")[0], way.decimals);
    if (!this.settings.isMetered || state !== "charged" || cost === null || !amount || cost > BigInt(amount)) return intent.price;
    this.slip.line(this.words.cost, this.priceOf(way, String(cost)));
    this.slip.line(this.words.back, this.priceOf(way, String(BigInt(amount) - cost)));
    return this.priceOf(way, String(cost));
  }

  /** @param {string} state @param {Intent} intent @param {string} [charged] what was charged */
  stamp(state, intent, charged = intent.price) {
    const known = /** @type {Record<string, [import("./call_slip.js").StampState, string]>} */ ({
      charged: ["charged", this.say("charged", charged)],
      released: ["released", this.words.released],
      held: ["held", this.words.held],
    });
    const [shape, sentence] = known[state] ?? ["failed", this.words.released];
    this.slip.note(sentence);
    this.slip.stamp(shape, this.words[shape.toUpperCase()]);
  }

  /** @param {Response} response */
  printHead(response) {
    this.slip.line(this.words.answer, `HTTP ${response.status}`);
    const call = response.headers.get("tollway-call-id");
    if (call) this.slip.line(this.words.callId, call, `/my/calls/${encodeURIComponent(call)}`);
  }

  /** @param {Problem} problem */
  describe(problem) {
    this.slip.line(this.words.problem, problem.code, `/problems/${problem.code.replaceAll("_", "-")}`);
    return new Stop(`${problem.title}. ${problem.detail}`);
  }

  // ---- After a reload, and after a wait without an outcome.

  /** @param {Intent} intent */
  offerToAskAgain(intent) {
    if (intent.state === "signing") return this.forgetIntent(); // the page never had a signature
    this.endNotes();
    this.slip.frame.hidden = false;
    this.button.textContent = this.say("again");
    this.anew.hidden = !intent.isRedirected;
    if (intent.isRedirected) {
      this.slip.note(this.say("redirectPaid"), true);
      this.slip.line(this.words.callId, "/my/calls", "/my/calls");
      return;
    }
    this.slip.note(this.say(intent.transaction || intent.rail === "x402" ? "pending" : "sendingUnknown"));
    if (intent.rail === "tx" && !intent.transaction) this.offerRecovery(intent);
    else this.recovery.hide();
  }

  /** Goes on with a payment: the same one, never a new one. @param {Intent} intent @returns {Promise<void>} */
  async resume(intent) {
    if (intent.isRedirected) {
      const box = /** @type {HTMLInputElement} */ (this.anew.querySelector("input"));
      if (!box.checked) throw new Stop(this.say("redirectPaid"));
      box.checked = false;
      sessionStorage.removeItem(`${this.place} credit`); // how much of it is left was in the hidden answer
      this.forgetIntent();
      return this.start();
    }
    if (intent.rail === "tx" && intent.state === "sending") return this.resumeTransaction(intent);
    if (intent.rail !== "x402" && isOutdated(intent)) {
      const { provider } = await this.openWallet(intent.way);
      intent.header = await this.signCall(intent, provider);
      this.writeIntent(intent);
    }
    return this.show(intent);
  }

  /**
   * Goes on with a transfer that is not mined yet. Its hash may be one that the wallet has replaced, so the reader can name another, which is tried beside it; only the reader gives a transfer up,
   * and not while it waits on its network.
   * @param {Intent} intent @returns {Promise<void>}
   */
  async resumeTransaction(intent) {
    const { given, isNoneSent } = this.recovery.read();
    const isGivenUp = isNoneSent && mayGiveUp(intent, Date.now());
    intent.sentMs ??= Date.now();
    if (/^0x[0-9a-f]{64}$/.test(given)) enterHash(intent, given);
    this.writeIntent(intent);
    if (!intent.transaction) {
      if (isGivenUp) return this.payAnew();
      this.offerRecovery(intent);
      throw new Stop(this.say("sendingUnknown"));
    }
    const { provider, from } = await this.openWallet(intent.way);
    if (intent.first) this.judgeFirst(intent, await readReceipt(provider, intent.first));
    if ((await readReceipt(provider, intent.transaction)) !== null) return this.proveTransaction(intent, provider);
    this.slip.note(this.say("signInToAsk"));
    const books = await import("./wallet_books.js");
    const hashes = intent.first ? [intent.transaction, intent.first] : [intent.transaction];
    const [state, first] = await books.readTransactionStates(this.readerOf(intent.way, provider, from), hashes);
    if (first === "mined" || first === "failed") this.judgeFirst(intent, first === "mined");
    if (first === "mined" || state === "mined") return this.showTransaction(intent, provider);
    if (state === "failed") throw this.endFailed(intent);
    const isPending = state === "pending" || first === "pending";
    if (isGivenUp && !isPending) return this.payAnew();
    if (isPending) this.recovery.offerNone(false);
    else this.offerRecovery(intent);
    throw new Stop(this.say(isPending ? "inPool" : "unseen"));
  }

  payAnew() {
    this.forgetIntent();
    return this.start();
  }

  /** The first transfer, beside an entered one. @param {Intent} intent @param {boolean | null} isSuccess */
  judgeFirst(intent, isSuccess) {
    if (isSuccess) restoreFirst(intent);
    else if (isSuccess === false) delete intent.first;
    this.writeIntent(intent);
  }

  /** The first hash again, in place of an entered one. Returns whether one was entered. @param {Intent} intent */
  returnToFirst(intent) {
    if (!restoreFirst(intent)) return false;
    this.writeIntent(intent);
    this.recovery.clear();
    this.button.textContent = this.say("again");
    return true;
  }

  /** A transaction failed on its chain: an entered one is dropped, and the first is forgotten. @param {Intent} intent */
  endFailed(intent) {
    if (this.returnToFirst(intent)) return new Stop(this.say("enteredFailed"));
    this.forgetIntent();
    return new Stop(this.say("reverted"));
  }

  /** Asks for another hash, and after some minutes whether the wallet shows no transfer at all. @param {Intent} intent */
  offerRecovery(intent) {
    this.recovery.offer(mayGiveUp(intent, Date.now()));
    if (mayGiveUp(intent, Date.now())) this.slip.note(this.say("mayGiveUp"));
  }

  /** @returns {Intent | null} */
  readIntent() {
    return readStored(`${this.place} payment`);
  }

  /** @param {Intent} intent */
  writeIntent(intent) {
    sessionStorage.setItem(`${this.place} payment`, JSON.stringify(intent));
  }

  forgetIntent() {
    sessionStorage.removeItem(`${this.place} payment`);
    this.recovery.hide();
    this.anew.hidden = true;
    this.showPrice();
  }

  /** What a transaction of this page has left pays for the next call. @param {Intent} intent @param {Response} response @param {string} state */
  keepCredit(intent, response, state) {
    if (intent.rail === "x402") return;
    const text = response.headers.get("tollway-credit-remaining");
    const units = text ? parse(text.split(" ")[0], intent.way.decimals) : null;
    if (units === null) {
      if (state !== "held") sessionStorage.removeItem(`${this.place} credit`);
      return;
    }
    if (text) this.slip.line(this.words.left, text);
    sessionStorage.setItem(`${this.place} credit`, JSON.stringify({ transaction: intent.transaction, from: intent.from, way: intent.way, units: String(units), text }));
  }

  /** Credit that this tab does not know pays the next call. */
  async lookForCredit() {
    const way = this.ways.find((one) => one.id === this.chosenWay()?.id && one.rail === "tx");
    if (!way) return;
    this.slip.clear();
    const { provider, from } = await this.openWallet(way);
    this.slip.note(this.say("signInForCredit"));
    const books = await import("./wallet_books.js");
    const found = await books.findCredit(this.readerOf(way, provider, from), way);
    if (!found || found.units < BigInt(this.agreed.get(way.id) ?? way.amount)) throw new Stop(this.say("noCredit"));
    const text = this.priceOf(way, String(found.units));
    sessionStorage.setItem(`${this.place} credit`, JSON.stringify({ transaction: found.transaction, from, way, units: String(found.units), text }));
    this.slip.line(this.words.credit, text);
    this.slip.note(this.say("creditFound"));
    this.showPrice();
  }

  /** @param {Way} way @param {import("./wallet.js").Wallet} wallet @param {string} address */
  readerOf(way, wallet, address) {
    return { wallet, address, chainId: way.chainId, onSilence: () => void this.slip.note(this.say("silent")) };
  }

  /** The rest of an earlier transaction, where it pays one more call. @param {Way} way @param {string} amount */
  findCredit(way, amount) {
    const credit = readStored(`${this.place} credit`);
    return credit && credit.way.id === way.id && BigInt(credit.units) >= BigInt(amount) ? credit : null;
  }

  /** Units of the way's token as the page writes them. @param {Way} way @param {string} amount @param {number} [calls] */
  priceOf(way, amount, calls = 1) {
    return `${format(String(BigInt(amount) * BigInt(calls)), way.decimals)} ${way.symbol}`;
  }

  /** Of a metered call the price is a maximum. @param {string} price */
  upTo(price) {
    return this.settings.isMetered ? this.say("upTo", price) : price;
  }
}

// ---- Small things.

/** @param {unknown} text */
const lower = (text) => (text === null || text === undefined ? "" : String(text).toLowerCase());

/** @param {number} ms */
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const form = document.querySelector("[data-call]");
if (form instanceof HTMLFormElement) new TryPanel(form);
followChoices();
