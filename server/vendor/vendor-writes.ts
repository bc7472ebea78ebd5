import { problemOfAllowing, takesSpend } from "@holdfast/sdk/stripe-vendor";
import type { VendorWrites } from "../domain/proxy-policy.ts";

/** Of the vendors whose writes this server knows one by one; of the others none is fit for anything. */
export const vendorWrites: VendorWrites = {
  spendProblem(vendor, endpoint) {
    if (vendor !== "stripe") return unknownVendor;
    if (takesSpend(endpoint)) return undefined;
    return 'is no Stripe write that spends; write its method and path with ":id" for each id, for example "POST /v1/invoices/:id/pay".';
  },
  unguardedProblem(vendor, endpoint) {
    return vendor === "stripe" ? problemOfAllowing(endpoint) : unknownVendor;
  },
};

const unknownVendor = "is of a vendor without a proxy; leave it out.";
