import { NotChargedError, type VendorGrant, type VendorReceipt } from "@holdfast/sdk";

/** Sends one message by the plain vendor, as an application that knows nothing of its ways would write it. */
export async function sendMessage(
  port: number,
  grant: VendorGrant,
  message: { readonly spend: string; readonly amount: number },
): Promise<VendorReceipt> {
  grant.assertHeld();
  const response = await fetch(`http://127.0.0.1:${port}/messages`, {
    method: "POST",
    headers: { "content-type": "application/json", "idempotency-key": grant.idempotencyKey },
    body: JSON.stringify(message),
    signal: AbortSignal.timeout(2_000),
  });
  if (response.status === 402) throw new NotChargedError({ vendorStatus: 402 });
  if (!response.ok) throw new Error(`The vendor answered ${response.status}.`);
  const { id } = (await response.json()) as { readonly id: string };
  return { vendorReference: id };
}
