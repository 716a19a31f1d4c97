from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.answers import find_last_boxed, is_same_answer, normalise_answer, parse_number


def test_only_the_last_box_counts_and_it_must_be_closed() -> None:
    boxed = {r"\boxed{7}": "7", r"first \boxed{3}, no: \boxed{7}.": "7", r"\boxed{\frac{1}{2}}": r"\frac{1}{2}"}
    boxed |= {r"\boxed{}": "", r"\boxed {7}": "7", r"\boxed{\boxed{7}}": "7"}
    boxed |= {r"\boxed{[1, 2\}}": r"[1, 2\}", r"\boxed{\left\{x\right.}": r"\left\{x\right."}
    for text, inside in boxed.items():
        assert find_last_boxed(text) == inside, text
    for text in ("no answer 7", r"\boxed 7", "boxed{7}", r"\boxed{7", r"\boxed{3} then \boxed{7", ""):
        assert find_last_boxed(text) is None, text


def test_numbers_are_read_exactly_and_what_is_none_is_none() -> None:
    sevens = {"7": "7", "+7": "7", "-7": "-7", "007": "7", "7.0": "7", "7.": "7", " $ 7 $ ": "7"}
    fractions = {".5": "1/2", "-0.25": "-1/4", "1/2": "1/2", "-2/4": "-1/2", r"\frac{1}{2}": "1/2"}
    others = {r"-\dfrac{3}{4}": "-3/4", "1,234,567": "1234567"}
    for text, value in (sevens | fractions | others).items():
        assert parse_number(text) == Fraction(value), text
    for text in ("", ".", "-", "seven", "1/0", "1,23", "e3", "1e9999", "0x7", "7 or 8", "1/2/3", "--7", "nan", "inf"):
        assert parse_number(text) is None, text
    for text in ("\N{ARABIC-INDIC DIGIT SEVEN}", "9" * 401):
        assert parse_number(text) is None, text


@given(st.text(alphabet="0123456789.,/-+\\frac{}box $ed", max_size=40))
def test_no_text_makes_the_reading_raise(text: str) -> None:
    find_last_boxed(text)
    parse_number(text)
    is_same_answer(text, "7")


def test_answers_that_are_no_numbers_are_compared_without_their_spacing() -> None:
    assert is_same_answer(r"\left( 3, \frac{\pi}{2} \right)", r"(3,\dfrac{\pi}{2})")
    assert is_same_answer(r"\text{Evelyn}", "Evelyn")
    assert is_same_answer("x = 5", "x=5.")
    assert not is_same_answer("(3, 4)", "(4, 3)")
    assert not is_same_answer("evelyn", "Evelyn")
    assert not is_same_answer("", "7")
    assert normalise_answer(r"$\text{ two words }$") == "twowords"


def test_a_number_is_never_equal_to_a_text_that_only_holds_it() -> None:
    assert is_same_answer("0.50", "1/2")
    assert not is_same_answer("7 apples", "7")
    assert not is_same_answer("0.3333", "1/3")


def test_spellings_of_one_answer_are_equal_and_different_answers_are_not() -> None:
    equal = (
        ("1.5", "1 1/2"), (r"1\frac{1}{2}", "1.5"), (r"-2\frac13", "-7/3"),
        (r"\frac{1}{2}", r"\frac12"), (r"\frac{1}{2}", r"\frac 1 2"), (r"\frac{a}{2}", r"\frac a2"),
        ("11", r"11\%"), ("11%", "11"), ("36", r"\$36"), ("1234", "1{,}234"), ("1234", r"1\,234"),
        (r"\sqrt{3}", r"\sqrt3"), (r"2\sqrt{x}", r"2\sqrt x"), ("-5", "\N{MINUS SIGN}5"), ("30", r"30^\circ"),
        ("(1, 2)", "(1,2)"), ("7 .", "7"), ("1,234", "1234"),
        ("1e3", "1000"), ("1.5E-3", "0.0015"), ("1e22", "1e+22"), (r"3 \times 10^{5}", "300000"),
        (r"3\cdot 10^5", "3e5"), (r"2 \cdot 10^{-3}", "0.002"), ("½", "0.5"), ("-1½", "-3/2"),
        ("1 ½", "3/2"), ("1\N{FRACTION SLASH}2", "1/2"), ("1.5/3", "1/2"), ("1,000/3", r"\frac{1,000}{3}"),
        (r"\frac{1}{-2}", "-0.5"), ("-1/-2", "1/2"),
        ("90°", "90"), ("\N{FULLWIDTH DIGIT FIVE}", "5"), ("\N{EN DASH}5", "-5"), ("\N{HYPHEN}5", "-5"),
        (r"\pm 2", "±2"), ("2π", r"2\pi"), (r"\frac\pi2", r"\frac{\pi}{2}"), (r"(-\infty, 5]", "(-∞,5]"),
        ("√3", r"\sqrt{3}"), (r"\sqrt[3]2", r"\sqrt[3]{2}"), (r"\cfrac12", "1/2"), (r"x \leq 5", r"x\le5"),
        ("x^2", "x^{2}"), ("x²", "x^2"), ("x_1", "x_{1}"), ("10²¹", "10^{21}"), (r"\textit{5}", "5"),
        (r"\mbox{5}", "5"), ("3\N{MULTIPLICATION SIGN}10^5", "300000"),
        (r"\displaystyle 5", "5"), (r"5\quad", "5"), ("5\\\\", "5"), ("5\N{ZERO WIDTH SPACE}", "5"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        (r"\(5\)", "5"), (r"\[\frac12\]", "1/2"), (r"90^{\circ }", "90"), ("52₈", "52_8"), ("x₁₂", "x_{12}"),
        (r"1\;1/2", "1.5"), (r"1\,234\,567", "1234567"), (r"12,\!000", "12000"),
    )  # fmt: skip
    different = (("11/2", "1 1/2"), ("1234", "1, 234"), ("34", "3 4"), ("1.5", "1 .5"), ("12", "1 2"), ("5", "-5"))
    different += (("x2", "x²"), ("11/2", "1½"), ("1.234,5", "1234.5"), ("1,2", "1.2"), ("1e3", "1e4"), ("2e3", "2"))
    different += ((r"1\;1/2", "11/2"), (r"1\;2", "12"), (r"3\,4", "34"), (r"3\quad4", "34"), ("1. 5", "1.5"))
    different += ((r"\leftarrow", "arrow"), (r"\{1,2\}", r"\{2,1\}"), ("5 cm", "5"))
    for given_answer, gold in equal:
        assert is_same_answer(given_answer, gold), (given_answer, gold)
        assert is_same_answer(gold, given_answer), (gold, given_answer)
    for given_answer, gold in different:
        assert not is_same_answer(given_answer, gold), (given_answer, gold)
