raise AssertionError("nothing of Headrace imports what lies here")
