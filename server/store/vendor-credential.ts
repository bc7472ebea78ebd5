import { HoldfastError } from "../domain/errors.ts";
import { lookedAccount, type VendorCredential } from "../domain/vendor-credential.ts";
import { StartupError } from "../startup-error.ts";
import { epochMicros } from "./authorization.ts";
import type { CredentialCipher, SealedSecret } from "./credential-cipher.ts";
import { type Database, run, statement } from "./database.ts";
import { sqlStateOf } from "./database-errors.ts";
import { listWorkspaces } from "./workspace.ts";

const columns = `c.vendor_credential_id, c.vendor, c.vendor_account_id, c.masked_secret,
  ${epochMicros("c.create_time")} as create_time, ${epochMicros("c.rotate_time")} as rotate_time,
  ${epochMicros("c.last_accepted_time")} as last_accepted_time, ${epochMicros("c.last_refused_time")} as last_refused_time`;

const sealedColumns = "c.key_id, c.nonce, c.ciphertext";

const takeAccountStatement = statement(
  "take_vendor_account",
  `insert into holdfast.vendor_accounts (vendor, vendor_account_id, workspace_id)
   values ($2::text, $3::text, $1::text) on conflict (vendor, vendor_account_id) do nothing`,
);

const accountOwnerStatement = statement(
  "vendor_account_owner",
  "select a.workspace_id from holdfast.vendor_accounts a where a.vendor = $1::text and a.vendor_account_id = $2::text",
);

const giveAccountStatement = statement(
  "give_vendor_account",
  `delete from holdfast.vendor_accounts a
   where a.workspace_id = $1::text and a.vendor = $2::text and a.vendor_account_id = $3::text`,
);

const insertStatement = statement(
  "insert_vendor_credential",
  `insert into holdfast.vendor_credentials as c (
     workspace_id, vendor_credential_id, vendor, vendor_account_id, masked_secret, key_id, nonce, ciphertext, create_time,
     last_accepted_time
   )
   select $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea, $8::bytea, now.t, now.t
   from (select holdfast.clock() as t) as now
   returning ${columns}`,
);

const noteAccountStatement = statement(
  "note_vendor_account",
  "select holdfast.note_vendor_account($1::text, $2::text, '', $3::text, holdfast.clock())",
);

const rotateStatement = statement(
  "rotate_vendor_credential",
  `update holdfast.vendor_credentials c set
     masked_secret = $3::text, key_id = $4::text, nonce = $5::bytea, ciphertext = $6::bytea,
     rotate_time = now.t, last_accepted_time = now.t
   from (select holdfast.clock() as t) as now
   where c.workspace_id = $1::text and c.vendor_credential_id = $2::text and c.vendor_account_id = $7::text
   returning ${columns}`,
);

const deleteStatement = statement(
  "delete_vendor_credential",
  `delete from holdfast.vendor_credentials c
   where c.workspace_id = $1::text and c.vendor_credential_id = $2::text returning ${columns}`,
);

const failRunsStatement = statement(
  "fail_runs_without_credential",
  `update holdfast.reconciliation_runs r set
     state = 'FAILED', finish_time = now.t, message = 'The vendor credential was deleted.'
   from (select holdfast.clock() as t) as now
   where r.workspace_id = $1::text and r.vendor = $2::text and r.state in ('PENDING', 'RUNNING')`,
);

const getStatement = statement(
  "get_vendor_credential",
  `select ${columns}, ${sealedColumns} from holdfast.vendor_credentials c
   where c.workspace_id = $1::text and c.vendor_credential_id = $2::text`,
);

const getOfVendorStatement = statement(
  "get_vendor_credential_of_vendor",
  `select ${columns}, ${sealedColumns} from holdfast.vendor_credentials c
   where c.workspace_id = $1::text and c.vendor = $2::text`,
);

const listStatement = statement(
  "list_vendor_credentials",
  `select ${columns}, ${sealedColumns} from holdfast.vendor_credentials c
   where c.workspace_id = $1::text and c.vendor_credential_id > $2::text
   order by c.vendor_credential_id limit $3::integer`,
);

const noteStatement = statement(
  "note_vendor_answer",
  `update holdfast.vendor_credentials c set
     last_accepted_time = case when $3::boolean then now.t else c.last_accepted_time end,
     last_refused_time = case when $3::boolean then c.last_refused_time else now.t end
   from (select holdfast.clock() as t) as now
   where c.workspace_id = $1::text and c.vendor_credential_id = $2::text
   returning ${columns}`,
);

// Compares what it replaces: a secret that was exchanged meanwhile stays.
const resealStatement = statement(
  "reseal_vendor_credential",
  `update holdfast.vendor_credentials c set key_id = $3::text, nonce = $4::bytea, ciphertext = $5::bytea
   where c.workspace_id = $1::text and c.vendor_credential_id = $2::text and c.nonce = $6::bytea`,
);

interface CredentialRow {
  readonly vendor_credential_id: string;
  readonly vendor: string;
  readonly vendor_account_id: string;
  readonly masked_secret: string;
  readonly create_time: bigint;
  readonly rotate_time: bigint | null;
  readonly last_accepted_time: bigint | null;
  readonly last_refused_time: bigint | null;
}

interface SealedRow extends CredentialRow {
  readonly key_id: string;
  readonly nonce: Buffer;
  readonly ciphertext: Buffer;
}

/** A credential with its secret, as it is stored. */
export interface StoredCredential {
  readonly credential: VendorCredential;
  readonly sealed: SealedSecret;
}

export interface NewVendorCredential {
  readonly vendorCredentialId: string;
  readonly vendor: string;
  readonly vendorAccountId: string;
  readonly maskedSecret: string;
  readonly sealed: SealedSecret;
}

/** Stores a credential. Throws ALREADY_EXISTS where the vendor has one in this workspace, or the account another one. */
export async function insertVendorCredential(
  transaction: Database,
  workspace: string,
  { vendorCredentialId, vendor, vendorAccountId, maskedSecret, sealed }: NewVendorCredential,
): Promise<VendorCredential> {
  await run(transaction, takeAccountStatement, [workspace, vendor, vendorAccountId]);
  const [owner] = await run<{ workspace_id: string }>(transaction, accountOwnerStatement, [vendor, vendorAccountId]);
  if (owner?.workspace_id !== workspace) {
    throw new HoldfastError(
      "ALREADY_EXISTS",
      `The account ${vendorAccountId} belongs to another workspace; one account of a vendor belongs to one workspace.`,
    );
  }
  const { keyId, nonce, ciphertext } = sealed;
  const values = [workspace, vendorCredentialId, vendor, vendorAccountId, maskedSecret, keyId, nonce, ciphertext];
  try {
    const [row] = await run<CredentialRow>(transaction, insertStatement, values);
    if (row === undefined) throw new Error("insert_vendor_credential returned no row");
    await run(transaction, noteAccountStatement, [workspace, vendor, lookedAccount({ vendorAccountId, maskedSecret })]);
    return readCredential(row);
  } catch (error) {
    if (sqlStateOf(error) !== "23505") throw error;
    throw new HoldfastError(
      "ALREADY_EXISTS",
      `This workspace has a credential with that id, or for ${vendor}; rotate it, or delete it first.`,
      { cause: error },
    );
  }
}

/** Exchanges the secret for another one of the same account; undefined if there is none with that id and account. */
export async function rotateVendorCredential(
  transaction: Database,
  workspace: string,
  change: Omit<NewVendorCredential, "vendor">,
): Promise<VendorCredential | undefined> {
  const { vendorCredentialId, vendorAccountId, maskedSecret, sealed } = change;
  const { keyId, nonce, ciphertext } = sealed;
  const values = [workspace, vendorCredentialId, maskedSecret, keyId, nonce, ciphertext, vendorAccountId];
  const [row] = await run<CredentialRow>(transaction, rotateStatement, values);
  return row === undefined ? undefined : readCredential(row);
}

/** Deletes a credential, ends the runs that need it, and lets another workspace take the account. */
export async function deleteVendorCredential(
  transaction: Database,
  workspace: string,
  vendorCredentialId: string,
): Promise<VendorCredential | undefined> {
  const [row] = await run<CredentialRow>(transaction, deleteStatement, [workspace, vendorCredentialId]);
  if (row === undefined) return undefined;
  await run(transaction, giveAccountStatement, [workspace, row.vendor, row.vendor_account_id]);
  await run(transaction, failRunsStatement, [workspace, row.vendor]);
  return readCredential(row);
}

export async function getVendorCredential(
  database: Database,
  workspace: string,
  vendorCredentialId: string,
): Promise<StoredCredential | undefined> {
  return await one(database, getStatement, [workspace, vendorCredentialId]);
}

/** The credential that a workspace has for a vendor. */
export async function credentialOfVendor(
  database: Database,
  workspace: string,
  vendor: string,
): Promise<StoredCredential | undefined> {
  return await one(database, getOfVendorStatement, [workspace, vendor]);
}

/** By id, after the given one. */
export async function listVendorCredentials(
  database: Database,
  workspace: string,
  after: string,
  limit: number,
): Promise<StoredCredential[]> {
  return (await run<SealedRow>(database, listStatement, [workspace, after, limit])).map(readStored);
}

/** Writes down that the vendor has accepted or refused the secret. */
export async function noteVendorAnswer(
  database: Database,
  workspace: string,
  vendorCredentialId: string,
  accepted: boolean,
): Promise<VendorCredential | undefined> {
  const [row] = await run<CredentialRow>(database, noteStatement, [workspace, vendorCredentialId, accepted]);
  return row === undefined ? undefined : readCredential(row);
}

/** The secret, for a call to the vendor. Undefined if this server's keys do not open it. */
export function openSecret(
  cipher: CredentialCipher,
  workspace: string,
  { credential, sealed }: StoredCredential,
): string | undefined {
  const { vendor, vendorCredentialId } = credential;
  return cipher.open(sealed, { workspace, vendor, credentialId: vendorCredentialId });
}

/**
 * Opens every stored credential once, and encrypts those anew that the previous key has encrypted.
 *
 * @throws StartupError 87 where a stored credential cannot be opened: with a wrong key the server could not ask the
 * vendor, and what it would store others could not read.
 */
export async function checkVendorCredentials(database: Database, cipher: CredentialCipher | undefined): Promise<void> {
  for (const workspace of await listWorkspaces(database)) {
    for (let after: string | undefined = ""; after !== undefined; ) {
      const page: StoredCredential[] = await listVendorCredentials(database, workspace, after, 200);
      for (const stored of page) await checkStored(database, workspace, stored, cipher);
      after = page.at(-1)?.credential.vendorCredentialId;
    }
  }
}

async function checkStored(
  database: Database,
  workspace: string,
  stored: StoredCredential,
  cipher: CredentialCipher | undefined,
): Promise<void> {
  const { vendorCredentialId, vendor } = stored.credential;
  const name = `vendorCredentials/${vendorCredentialId} of the workspace ${workspace}`;
  if (cipher === undefined) {
    throw new StartupError(
      "credentialKey",
      `The database holds ${name}, and no key opens it; set HOLDFAST_CREDENTIAL_KEY or HOLDFAST_CREDENTIAL_KEY_FILE.`,
    );
  }
  const secret = openSecret(cipher, workspace, stored);
  if (secret === undefined) {
    throw new StartupError(
      "credentialKey",
      `HOLDFAST_CREDENTIAL_KEY does not open ${name}; set the key that it was stored with, as ` +
        "HOLDFAST_CREDENTIAL_KEY_PREVIOUS if it was exchanged.",
    );
  }
  if (stored.sealed.keyId === cipher.keyId) return;
  const { keyId, nonce, ciphertext } = cipher.seal(secret, { workspace, vendor, credentialId: vendorCredentialId });
  const values = [workspace, vendorCredentialId, keyId, nonce, ciphertext, stored.sealed.nonce];
  await run(database, resealStatement, values);
}

async function one(database: Database, sql: typeof getStatement, values: unknown[]) {
  const [row] = await run<SealedRow>(database, sql, values);
  return row === undefined ? undefined : readStored(row);
}

function readStored(row: SealedRow): StoredCredential {
  const { key_id: keyId, nonce, ciphertext } = row;
  return { credential: readCredential(row), sealed: { keyId, nonce, ciphertext } };
}

/** The workspace that an account of a vendor belongs to; undefined where none has taken it. */
export async function vendorAccountOwner(
  database: Database,
  vendor: string,
  account: string,
): Promise<string | undefined> {
  const [owner] = await run<{ workspace_id: string }>(database, accountOwnerStatement, [vendor, account]);
  return owner?.workspace_id;
}

function readCredential(row: CredentialRow): VendorCredential {
  return {
    vendorCredentialId: row.vendor_credential_id,
    vendor: row.vendor,
    vendorAccountId: row.vendor_account_id,
    maskedSecret: row.masked_secret,
    createTime: row.create_time,
    rotateTime: row.rotate_time ?? undefined,
    lastAcceptedTime: row.last_accepted_time ?? undefined,
    lastRefusedTime: row.last_refused_time ?? undefined,
  };
}
