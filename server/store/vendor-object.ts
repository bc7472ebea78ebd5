import { type Database, run, statement } from "./database.ts";

const rememberStatement = statement(
  "remember_vendor_objects",
  `insert into holdfast.vendor_objects (
     workspace_id, vendor, vendor_account, object_id, vault_key_id, create_time
   )
   select $1::text, $2::text, $3::text, o.id, $4::text, now.t
   from (select holdfast.clock() as t) as now, unnest($5::text[]) as o (id)
   order by o.id
   on conflict (workspace_id, vendor, vendor_account, object_id) do nothing`,
);

const ownerStatement = statement(
  "vendor_object_owner",
  `select o.vault_key_id from holdfast.vendor_objects o
   where o.workspace_id = $1::text and o.vendor = $2::text and o.vendor_account = $3::text and o.object_id = $4::text`,
);

// A first owner stays the owner, so nobody comes to an object by showing it around. What a spend is bound to does not
// count: a key can bind its spend to any id that it has heard of.
const ownsStatement = statement(
  "owns_vendor_objects",
  `select not exists (
     select from unnest($5::text[]) as asked (id)
     where not exists (
       select from holdfast.vendor_objects o
       where o.workspace_id = $1::text and o.vendor = $2::text and o.vendor_account = $3::text
         and o.object_id = asked.id and o.vault_key_id = $4::text
     )
   ) as owns`,
);

/** Where an object of a vendor is. */
export interface VendorPlace {
  readonly vendor: string;
  /** The connected account; empty for the platform's own. */
  readonly vendorAccount: string;
}

/** Writes down which vault key has made these objects. What is known already keeps its owner. */
export async function rememberVendorObjects(
  database: Database,
  workspace: string,
  { vendor, vendorAccount }: VendorPlace,
  made: { readonly vaultKeyId: string; readonly objectIds: readonly string[] },
): Promise<void> {
  if (made.objectIds.length === 0) return;
  await run(database, rememberStatement, [workspace, vendor, vendorAccount, made.vaultKeyId, made.objectIds]);
}

/** The vault key that has made the object; undefined where none of this workspace is known to have. */
export async function vendorObjectOwner(
  database: Database,
  workspace: string,
  { vendor, vendorAccount }: VendorPlace,
  objectId: string,
): Promise<string | undefined> {
  const values = [workspace, vendor, vendorAccount, objectId];
  const [row] = await run<{ vault_key_id: string }>(database, ownerStatement, values);
  return row?.vault_key_id;
}

/** Whether a vault key is known to have made every one of these objects. */
export async function ownsVendorObjects(
  database: Database,
  workspace: string,
  { vendor, vendorAccount }: VendorPlace,
  asked: { readonly vaultKeyId: string; readonly objectIds: readonly string[] },
): Promise<boolean> {
  const values = [workspace, vendor, vendorAccount, asked.vaultKeyId, [...new Set(asked.objectIds)]];
  const [row] = await run<{ owns: boolean }>(database, ownsStatement, values);
  return row?.owns === true;
}
