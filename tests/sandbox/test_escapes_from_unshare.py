"""Nothing in a box by unshare gets out of it."""

from __future__ import annotations

from escapes import make_test

test_no_attack_gets_out_of_a_box = make_test("unshare")
