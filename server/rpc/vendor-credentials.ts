import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type VendorCredential as VendorCredentialMessage,
  VendorCredentialSchema,
} from "@holdfast/api/holdfast/v1/vendor_credential_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import { type CredentialTrial, maskSecret, modeOf, type VendorCredential } from "../domain/vendor-credential.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/vendor-credential.ts";
import { type Principal, principalOf } from "./auth.ts";
import { timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type VendorCredentialMethods = Pick<
  ServiceImpl<typeof AdminService>,
  | "createVendorCredential"
  | "rotateVendorCredential"
  | "testVendorCredential"
  | "getVendorCredential"
  | "listVendorCredentials"
  | "deleteVendorCredential"
>;

export interface VendorCredentialDependencies {
  readonly database: Database;
  readonly changePolicy: ChangePolicy;
  /** Undefined where the server has no key: nothing can be stored. */
  readonly cipher: CredentialCipher | undefined;
  /** One harmless read with a secret. */
  readonly tryOut: (secret: string) => Promise<CredentialTrial>;
}

/** The vendors' own keys that Holdfast keeps. A secret comes in and is tried; it never goes out, into no log and no audit. */
export function vendorCredentialMethods(dependencies: VendorCredentialDependencies): VendorCredentialMethods {
  const { database, changePolicy, tryOut } = dependencies;
  const eventOf = (principal: Principal, kind: string, detail: object) => ({
    principal,
    kind: `vendor_credential.${kind}`,
    traceId: currentTraceId() ?? "",
    detail,
  });
  return {
    async createVendorCredential({ vendorCredentialId, vendor, secret }, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const { cipher, maskedSecret } = checked(dependencies, vendor, secret);
      const vendorAccountId = await accepted(tryOut, secret);
      const sealed = cipher.seal(secret, { workspace, vendor, credentialId: vendorCredentialId });
      const made = { vendorCredentialId, vendor, vendorAccountId, maskedSecret, sealed };
      const detail = { vendor_credential: vendorCredentialId, vendor, vendorAccountId, maskedSecret };
      const credential = await changePolicy(eventOf(principal, "created", detail), (transaction) =>
        store.insertVendorCredential(transaction, workspace, made),
      );
      return { vendorCredential: credentialMessage(credential) };
    },
    async rotateVendorCredential({ name, secret }, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const { credential: before } = await stored(database, workspace, name);
      const { vendor, vendorCredentialId } = before;
      const { cipher, maskedSecret } = checked(dependencies, vendor, secret);
      const vendorAccountId = await accepted(tryOut, secret);
      if (vendorAccountId !== before.vendorAccountId) {
        throw invalidField(
          "secret",
          `is of the account ${vendorAccountId}; this credential is of ${before.vendorAccountId}. Create another one for it.`,
        );
      }
      // One account has two worlds, and what was charged in the one does not show in the other.
      if (modeOf({ maskedSecret }) !== modeOf(before)) {
        throw invalidField("secret", `must be of the ${modeOf(before)} mode, like the present one.`);
      }
      const sealed = cipher.seal(secret, { workspace, vendor, credentialId: vendorCredentialId });
      const detail = { vendor_credential: vendorCredentialId, vendor, vendorAccountId, maskedSecret };
      const rotated = await changePolicy(eventOf(principal, "rotated", detail), async (transaction) => {
        const change = { vendorCredentialId, vendorAccountId, maskedSecret, sealed };
        return (await store.rotateVendorCredential(transaction, workspace, change)) ?? missing(name);
      });
      return { vendorCredential: credentialMessage(rotated) };
    },
    async testVendorCredential({ name }, context) {
      const { workspace } = principalOf(context.values);
      const found = await stored(database, workspace, name);
      const secret = store.openSecret(requireCipher(dependencies), workspace, found);
      if (secret === undefined) throw notOpened();
      const trial = await tryOut(secret);
      const { vendorCredentialId } = found.credential;
      const isAccepted = trial.kind === "accepted" && trial.vendorAccountId === found.credential.vendorAccountId;
      const noted =
        trial.kind === "unknown"
          ? found.credential
          : await store.noteVendorAnswer(database, workspace, vendorCredentialId, isAccepted);
      return {
        vendorCredential: credentialMessage(noted ?? found.credential),
        accepted: isAccepted,
        message: trialText(trial),
      };
    },
    async getVendorCredential({ name }, context) {
      const { workspace } = principalOf(context.values);
      return { vendorCredential: credentialMessage((await stored(database, workspace, name)).credential) };
    },
    async listVendorCredentials(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken("vendor_credentials", request.pageToken, 1) ?? [];
      const rows = await store.listVendorCredentials(database, workspace, after, size + 1);
      const credentials = rows.map(({ credential }) => credential);
      const page = cutPage("vendor_credentials", credentials, size, (last) => [last.vendorCredentialId]);
      return { vendorCredentials: page.rows.map(credentialMessage), nextPageToken: page.nextPageToken };
    },
    async deleteVendorCredential({ name, reason }, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const id = idOf(name);
      const event = eventOf(principal, "deleted", { vendor_credential: id, reason });
      await changePolicy(event, async (transaction, audit) => {
        const deleted = (await store.deleteVendorCredential(transaction, workspace, id)) ?? missing(name);
        audit.detail({ vendor: deleted.vendor, vendorAccountId: deleted.vendorAccountId });
      });
      return {};
    },
  };
}

/** Throws where it cannot be stored, before it leaves for the vendor. No message repeats the secret. */
function checked(dependencies: VendorCredentialDependencies, vendor: string, secret: string) {
  const cipher = requireCipher(dependencies);
  if (vendor !== "stripe") throw invalidField("vendor", 'must be "stripe": no other vendor can be asked yet.');
  const maskedSecret = maskSecret(vendor, secret);
  if (maskedSecret === undefined) {
    throw invalidField(
      "secret",
      "is no secret or restricted key of Stripe's, such as sk_live_…, rk_live_… or sk_test_….",
    );
  }
  return { cipher, maskedSecret };
}

function requireCipher({ cipher }: VendorCredentialDependencies): CredentialCipher {
  if (cipher !== undefined) return cipher;
  throw new HoldfastError(
    "STATE_NOT_ALLOWED",
    "The server has no key to encrypt credentials with; start it with HOLDFAST_CREDENTIAL_KEY, 32 random bytes in base64.",
    { metadata: { state: "NO_CREDENTIAL_KEY" } },
  );
}

/** The account that the secret opens. Throws where the vendor does not accept it, or did not answer. */
async function accepted(tryOut: VendorCredentialDependencies["tryOut"], secret: string): Promise<string> {
  const trial = await tryOut(secret);
  if (trial.kind === "accepted") return trial.vendorAccountId;
  if (trial.kind === "refused") throw invalidField("secret", `is not accepted. ${trial.message}`);
  throw new HoldfastError("STATE_NOT_ALLOWED", `${trial.message} Nothing was stored; try again.`, {
    metadata: { state: "VENDOR_UNAVAILABLE" },
  });
}

function trialText(trial: CredentialTrial): string {
  return trial.kind === "accepted" ? `The vendor accepts it, for ${trial.vendorAccountId}.` : trial.message;
}

async function stored(database: Database, workspace: string, name: string): Promise<store.StoredCredential> {
  return (await store.getVendorCredential(database, workspace, idOf(name))) ?? missing(name);
}

function missing(name: string): never {
  throw new HoldfastError("NOT_FOUND", `There is no ${name}. ListVendorCredentials shows which there are.`, {
    metadata: { name },
  });
}

function notOpened(): HoldfastError {
  return new HoldfastError(
    "STATE_NOT_ALLOWED",
    "The keys of this server do not open the credential; it was stored with a newer one. Restart the server with it.",
    { metadata: { state: "OTHER_CREDENTIAL_KEY" } },
  );
}

function idOf(name: string): string {
  const match = /^vendorCredentials\/([a-z0-9]{1,32})$/.exec(name);
  if (match === null) throw invalidField("name", 'must be a resource name, for example "vendorCredentials/stripe".');
  return match[1] as string;
}

function credentialMessage(credential: VendorCredential): VendorCredentialMessage {
  const time = (name: "rotateTime" | "lastAcceptedTime" | "lastRefusedTime", micros: bigint | undefined) =>
    micros === undefined ? {} : { [name]: timestampMessage(micros) };
  return create(VendorCredentialSchema, {
    name: `vendorCredentials/${credential.vendorCredentialId}`,
    vendor: credential.vendor,
    vendorAccountId: credential.vendorAccountId,
    maskedSecret: credential.maskedSecret,
    createTime: timestampMessage(credential.createTime),
    ...time("rotateTime", credential.rotateTime),
    ...time("lastAcceptedTime", credential.lastAcceptedTime),
    ...time("lastRefusedTime", credential.lastRefusedTime),
  });
}
