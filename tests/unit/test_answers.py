from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.answers import last_boxed, normalised, number, same


def test_only_the_last_box_counts_and_it_must_be_closed() -> None:
    boxed = {r"\boxed{7}": "7", r"first \boxed{3}, no: \boxed{7}.": "7", r"\boxed{\frac{1}{2}}": r"\frac{1}{2}"}
    boxed |= {r"\boxed{}": ""}
    for text, inside in boxed.items():
        assert last_boxed(text) == inside, text
    for text in ("no answer 7", r"\boxed 7", "boxed{7}", r"\boxed{7", r"\boxed{3} then \boxed{7", ""):
        assert last_boxed(text) is None, text


def test_numbers_are_read_exactly_and_what_is_none_is_none() -> None:
    sevens = {"7": "7", "+7": "7", "-7": "-7", "007": "7", "7.0": "7", "7.": "7", " $ 7 $ ": "7"}
    fractions = {".5": "1/2", "-0.25": "-1/4", "1/2": "1/2", "-2/4": "-1/2", r"\frac{1}{2}": "1/2"}
    others = {r"-\dfrac{3}{4}": "-3/4", "1,234,567": "1234567"}
    for text, value in (sevens | fractions | others).items():
        assert number(text) == Fraction(value), text
    for text in ("", ".", "-", "seven", "1/0", "1,23", "1e3", "0x7", "7 or 8", "1/2/3", "--7", "nan", "inf"):
        assert number(text) is None, text
    for text in ("\N{ARABIC-INDIC DIGIT SEVEN}", "9" * 401):
        assert number(text) is None, text


@given(st.fractions())
def test_every_fraction_is_read_back(value: Fraction) -> None:
    assert number(str(value)) == value


@given(st.text(alphabet="0123456789.,/-+\\frac{}box $ed", max_size=40))
def test_no_text_makes_the_reading_raise(text: str) -> None:
    last_boxed(text)
    number(text)
    same(text, "7")


def test_answers_that_are_no_numbers_are_compared_without_their_spacing() -> None:
    assert same(r"\left( 3, \frac{\pi}{2} \right)", r"(3,\dfrac{\pi}{2})")
    assert same(r"\text{Evelyn}", "Evelyn")
    assert same("x = 5", "x=5.")
    assert not same("(3, 4)", "(4, 3)")
    assert not same("evelyn", "Evelyn")
    assert not same("", "7")
    assert normalised(r"$\text{ two words }$") == "twowords"


def test_a_number_is_never_equal_to_a_text_that_only_holds_it() -> None:
    assert same("0.50", "1/2")
    assert not same("7 apples", "7")
    assert not same("0.3333", "1/3")


def test_spellings_of_one_answer_are_equal_and_different_answers_are_not() -> None:
    equal = (
        ("1.5", "1 1/2"), (r"1\frac{1}{2}", "1.5"), (r"-2\frac13", "-7/3"),
        (r"\frac{1}{2}", r"\frac12"), (r"\frac{1}{2}", r"\frac 1 2"), (r"\frac{a}{2}", r"\frac a2"),
        ("11", r"11\%"), ("11%", "11"), ("36", r"\$36"), ("1234", "1{,}234"), ("1234", r"1\,234"),
        (r"\sqrt{3}", r"\sqrt3"), (r"2\sqrt{x}", r"2\sqrt x"), ("-5", "\N{MINUS SIGN}5"), ("30", r"30^\circ"),
        ("(1, 2)", "(1,2)"), ("7 .", "7"), ("1,234", "1234"),
    )  # fmt: skip
    different = (("11/2", "1 1/2"), ("1234", "1, 234"), ("34", "3 4"), ("1.5", "1 .5"), ("12", "1 2"), ("5", "-5"))
    for given_answer, gold in equal:
        assert same(given_answer, gold), (given_answer, gold)
        assert same(gold, given_answer), (gold, given_answer)
    for given_answer, gold in different:
        assert not same(given_answer, gold), (given_answer, gold)
