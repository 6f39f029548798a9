// Every kernel, for a host that compiles one library.
#include "attention_decode.metal"
#include "gdn_decode.metal"
#include "gemv.metal"
#include "moe_decode.metal"
#include "sample.metal"
