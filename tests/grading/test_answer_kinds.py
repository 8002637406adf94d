r"""Kinds of answers, each with right and wrong ones: a gold, what equals it, and what looks close.

Judged by hand. A row of kind `math` is the content of a box.
"""

import pytest

from jaxrl_llm.grading import spellings, verifiers

MATH = {
  "ordinals": [
    (r"\text{20th}", ["20", "20th", "20^{th}", r"20^\text{th}", r"20^{\text{th}}", r"20\text{th}"],
     ["21", r"\text{21st}", "20^{2}", r"\text{2nd}"]),
    ("3", ["3rd", r"3^{\text{rd}}", r"\text{3rd}"], ["3^3", r"\text{4th}", r"\frac{1}{3}"]),
    (r"\text{March 5}", [r"\text{March 5th}"], [r"\text{March 6th}"]),
  ],
  "signs": [
    (r"x\le 2", ["x⩽2", "x≦2"], ["x⩾2", "x<2"]),
    (r"\sqrt{3}", ["√{3}", "√(3)"], ["√{13}"]),
    (r"\sqrt[3]{4}", ["∛4", "∛{4}"], ["√4", "∜4"]),
    ("6", ["２×３", "６"], ["２＋３", "２³"]),
    (r"\frac{3}{4}", ["3⁄4", "3∕4", "¾"], ["4⁄3", "⅜"]),
    ("x^{12}", ["x¹²"], ["x¹", "x²", "12x"]),
    (r"\log_{2}3", [r"\log₂3"], [r"\log₃2"]),
    (r"\theta", ["θ"], ["α", r"\phi"]),
  ],
  "commands": [
    (r"\{1,2\}", [r"\lbrace 1,2\rbrace"], [r"\lbrace 1,3\rbrace", r"\lbrack 1,2\rbrack"]),
    ("3:4", [r"3\colon 4", "3{:}4"], [r"4\colon 3"]),
    ("18.9", [r"\textdollar 18.90"], [r"\textdollar 18.09"]),
    (r"\ln 2", [r"\log_e 2", r"\log_{e}2"], [r"\log_2 e", r"\log_{10} 2"]),
    ("120", ["_{10}C_3", r"{}_{10}C_{3}"], ["_{10}C_4", "10C"]),
    (r"\triangle ABC", [r"\Delta ABC"], [r"\Delta ABD"]),
    (r"\overline{AB}", ["AB", r"\text{AB}", r"\text{segment }AB"], [r"\overline{AC}", "A", "AB^2"]),
    (r"\overline{z}", [r"\bar{z}"], ["z", "-z"]),
    (r"\begin{pmatrix}1\\2\end{pmatrix}",
     [r"\left(\begin{array}{c}1\\2\end{array}\right)",
      r"\left[\begin{array}{r}1\\2\end{array}\right]"],
     [r"\left(\begin{array}{c}2\\1\end{array}\right)"]),
    ("5", [r"5\frac{\text{m}}{\text{s}}", r"5\hspace{1em}"],
     [r"5\frac{m}{n}", r"\frac{5}{\text{s}}x"]),
    (r"60\text{ mph}", [r"60\frac{\text{miles}}{\text{hour}}"],
     [r"60\frac{\text{km}}{\text{hour}}"]),
  ],
  "numerals": [
    (r"\frac{1}{3}", [r"0.\bar{3}", r"0.\bar3", "0.333...", r"0.3333\ldots", "0.333…"],
     ["0.333", "0.33...", r"0.\bar{34}"]),
    (r"\frac{41}{333}", [r"0.123123\ldots"], [r"0.123\ldots", r"0.132132\ldots"]),
    (r"\frac{5}{6}", ["0.8333..."], ["0.8383..."]),
    ("1234567", ["1'234'567"], ["1'234", "1'243'567"]),
    ("[0,1)", ["[0;1)"], ["(0;1)", "[0;1]"]),
    ("(3,-4)", ["(3;-4)"], ["(-4;3)"]),
  ],
  "dates and times": [
    (r"\text{March 5}", ["March 5", r"\text{5 March}", r"\text{the 5th of March}", r"\text{Mar 5}",
                         r"\text{Tuesday, March 5th}"],
     [r"\text{March 6}", r"\text{May 5}", "5", r"\text{March}", r"\text{March 15}"]),
    (r"\text{July 4, 1776}", [r"\text{July 4th, 1776}", r"\text{4 July 1776}"],
     [r"\text{July 4, 1777}", r"\text{July 4}", r"\text{June 4, 1776}", "1776"]),
    (r"3\text{ PM}", [r"3:00\text{ p.m.}", "3:00", "15:00", r"\text{3 pm}"],
     [r"3\text{ AM}", "3:30", r"15:00\text{ AM}", "4:00"]),
    (r"\text{noon}", [r"\text{12:00 PM}", "12:00"], [r"\text{midnight}", r"\text{12 AM}"]),
  ],
  "words": [
    ("2", [r"\text{two}", r"\text{two solutions}", "two"],
     [r"\text{two thirds}", r"\text{two or three}", r"\text{two hundred}", r"\text{half}"]),
    ("42", [r"\text{forty-two}", r"\text{Forty two apples}"],
     [r"\text{forty}", r"\text{four two}"]),
    ("105", [r"\text{one hundred and five}"], [r"\text{one hundred five thousand}"]),
    ("1", [r"\text{one}"], [r"\text{one of them}", r"\text{one and a half}"]),
    ("500", [r"5\text{ hundred}"], ["5", r"5\text{ thousand}"]),
    ("5", [r"5\text{ apples}"], [r"5\text{ hundred}", r"5\text{ million}"]),
    (r"2^{3}\cdot 3^2\cdot 5", ["360"], [r"360\text{ million}", r"360\text{ thousand}"]),
    ("No", [r"\text{no}", r"\text{No.}"], [r"\text{yes}", r"\text{none}", r"\text{yes or no}"]),
    (r"\text{DNE}", [r"\text{does not exist}"], ["0", r"\text{exists}"]),
  ],
  "names": [
    ("6", [r"\text{Area}=6\text{ cm}^2", r"\text{Total} = 6"], [r"\text{Area}=7", r"\text{not}=6"]),
    (r"x=3 \text{ or } x=-3", ["x_1=3, x_2=-3", r"x_1=-3,\ x_2=3"], ["x_1=3, x_2=3", "x_1=3"]),
    ("x_1=1, x_2=2", ["x_1=1, x_2=2"], ["x_1=2, x_2=1"]),
    ("1101_2", ["(1101)_2", "1101_{(2)}"], ["(1101)_3", "(1011)_2"]),
    (r"\pm\sqrt{7}", [r"x=\pm\sqrt{7}"], [r"e^x=\pm\sqrt{7}"]),
  ],
  "parts that a checker might not read": [
    (r"\frac{5}{9}", [r"\frac59"], [r"\sqrt\frac{5}{9}", r"10^\frac{5}{9}", r"\frac59\cup\{7\}"]),
    (r"\sqrt{\frac{5}{9}}", [r"\sqrt\frac59"], [r"\frac{5}{9}"]),
    (r"\frac{a}{b}", [r"\frac ab", r"\frac{a}b"], [r"\frac ba", r"\frac ac"]),
    (r"\frac{\pi}{4}", [r"\frac\pi4", r"\frac{\pi}4"], [r"\frac4\pi", r"\frac\pi3"]),
    (r"\sqrt{\pi}", [r"\sqrt\pi", r"\pi^\frac12"], [r"\pi", r"\sqrt2\pi"]),
    ("2", [r"2\text{ m}"], [r"2\text{i}", r"2\mathrm{i}"]),
    (r"\sqrt{2}", [r"\sqrt{2} \approx 1.41"], [r"\sqrt2 \approx 1.41 \text{ or } \sqrt3"]),
  ],
  "units": [
    (r"50\text{ N}", [r"0.05\text{ kN}", r"50\text{ newtons}"],
     [r"50\text{ kN}", r"50\text{ Nm}", r"50\text{ dyn}", r"50\text{ MN}"]),
    (r"60\text{ W}", [r"60\text{ J/s}", r"0.06\text{ kW}"],
     [r"60\text{ mW}", r"60\text{ Wh}", r"60\text{ V}"]),
    (r"200\text{ kPa}", [r"2\times10^5\text{ Pa}"], [r"200\text{ MPa}", r"200\text{ atm}"]),
    (r"0.5\text{ mol}", [r"500\text{ mmol}"], [r"0.5\text{ g}", r"0.5\text{ mol/L}"]),
    (r"3\text{ L}", [r"3000\text{ mL}", r"3000\text{ cm}^3", "3"],
     [r"3\text{ mL}", r"3\text{ gallons}", r"3\text{ kg}"]),
    (r"1\text{ kWh}", [r"3.6\text{ MJ}"], [r"1\text{ kW}", r"1\text{ MWh}"]),
    (r"2\text{ years}", [r"24\text{ months}", r"2\text{ yrs}"], [r"2\text{ months}"]),
    (r"90\text{ minutes}", [r"1\text{ hour }30\text{ minutes}", r"1\text{ h }30\text{ min}"],
     [r"1\text{ hour }20\text{ minutes}", r"1\text{ hour}", r"130\text{ minutes}"]),
    (r"5\text{ ft }6\text{ in}", [r"66\text{ in}", r"5.5\text{ ft}"], [r"5\text{ ft}", "5.6"]),
    (r"20^\circ\text{C}", ["20°C", r"20^\circ"], [r"20^\circ\text{F}", r"20\text{ K}"]),
    (r"120^\circ", [r"\frac{2\pi}{3}"], [r"120\text{ rad}", r"120\%"]),
    (r"4\ \Omega", [r"4\text{ ohms}"], [r"4\text{ k}\Omega", r"4\text{ V}"]),
    (r"12\text{ apples}", ["12", r"12\text{ fruits}"], [r"12\%"]),
    ("3nm", ["3mn"], ["3", "3n"]),
  ],
  "currencies and percentages": [
    (r"\$45", ["45", r"45\text{ USD}", r"\text{US}\$45"],
     ["€45", "£45", "¥45", r"45\text{ euros}", r"45\%", r"45\text{ cents}"]),
    ("€20", ["20", r"20\text{ euros}"], [r"\$20", r"20\text{ cents}"]),
    (r"\pounds 8", ["£8", r"8\text{ pounds}"], ["€8", r"8\text{ kg}", r"8\text{ pence}"]),
    (r"40\%", ["40", "0.4", r"40\text{ per cent}"], [r"\$40", r"40^\circ", r"40\text{ kg}"]),
  ],
  "names of functions and constants": [
    ("6x+5", ["f'(x)=6x+5", "y'=6x+5", r"\frac{dy}{dx}=6x+5", r"\frac{d}{dx}(3x^2+5x)=6x+5"],
     ["f'(x)=6x-5", "y'=6x"]),
    ("f'(x)=3x^2", ["3x^2", r"\frac{dy}{dx}=3x^2"], ["f(x)=3x^2", "f''(x)=3x^2", "x^3"]),
    ("f'(2)=12", ["12", "f'(2)=12"], ["f'(12)=2", "f'(2)=-12"]),
    ("y'=2y", ["y'=y\\cdot 2"], ["y''=2y", "y'=2x"]),
    ("f^{-1}(x)=2x", ["y=2x", "2x"], ["y=-2x"]),
    (r"\frac{x^3}{3}+C", [r"\frac{x^3}{3}+c", r"\frac13x^3+K", r"\frac{x^3}{3}+C_1"],
     [r"\frac{x^3}{3}", r"\frac{x^3}{3}+x", r"\frac{x^3}{3}+Kx"]),
    ("y=C_1e^x+C_2e^{-x}", ["y=Ae^x+Be^{-x}", "y=c_1e^x+c_2e^{-x}"],
     ["y=C_1e^x+C_1e^{-x}", "y=Ae^x+Be^x", "y=Ae^x"]),
    ("C", [r"\text{C}"], ["A", "K"]),
    (r"F=\frac95C+32", ["F=1.8C+32"], [r"F=\frac95K+32"]),
    (r"x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z}",
     [r"\frac{\pi}{4}+n\pi", r"x=\frac{\pi}{4}+n\pi,\text{ where } n \text{ is an integer}"],
     [r"\frac{\pi}{4}+2n\pi", r"\frac{\pi}{4}", r"\frac{\pi}{4}+nk\pi"]),
    (r"\Omega", [r"\Omega"], [r"\omega"]),
  ],
  "sentences and words": [
    (r"\text{odd}", [r"\text{The function is odd.}", r"\text{It is odd}"],
     [r"\text{The function is not odd}", r"\text{It is rarely odd}", r"\text{It is even}"]),
    (r"\text{No solution}", [r"\text{There is no solution.}",
                             r"\text{The system has no solutions}"],
     [r"\text{The system has a solution}", r"\text{The system has no unique solution}"]),
    (r"\text{infinitely many}", [r"\text{There are infinitely many solutions.}",
                                 r"\text{infinite}"],
     [r"\text{finitely many}", r"\text{There are not infinitely many solutions}"]),
    (r"\text{converges}", [r"\text{The series converges.}"], [r"\text{It does not converge}"]),
    ("-7", [r"\text{negative }7", r"\text{minus }7", "{-}7"], ["7", r"\text{negative } -7"]),
    (r"-\infty", [r"\text{negative infinity}"], [r"\text{infinity}", r"\text{positive infinity}"]),
    ("18", [r"\text{The area is } 18"], [r"\text{square root of } 18", r"\text{half of } 18"]),
    (r"\text{(D)}\ 24", [r"\text{(D)}", r"\text{(D)}\ 24.0"], [r"\text{(D)}\ 25"]),
    ("x=2", [r"x=2\text{ (double root)}", r"x=2\ (\text{since } x=1 \text{ is extraneous})"],
     [r"x=2 \text{ or } 1"]),
    (r"\frac13", [r"\frac13\text{ of the cake}"], [r"\frac13\text{ to }\frac12"]),
    (r"\text{March 14, 2015}", [r"\text{2015-03-14}"], [r"\text{2015-04-14}"]),
  ],
  "other notations": [
    (r"\langle 1,-2,3\rangle", [r"\mathbf{i}-2\mathbf{j}+3\mathbf{k}",
                                r"\hat{\imath}-2\hat{\jmath}+3\hat{k}"],
     [r"\mathbf{i}+2\mathbf{j}+3\mathbf{k}", r"\hat{i}-2\hat{j}"]),
    (r"x\equiv3\pmod7", [r"x\equiv-4\pmod7", r"x\equiv3\ (\text{mod }7)", r"3\pmod7"],
     [r"x\equiv-3\pmod7", r"x\equiv3\pmod5", r"x=3k+7,k\in\mathbb{Z}"]),
    ("1<x<3", [r"x>1\text{ and }x<3"], [r"x>1\text{ or }x<3", r"x\ge1\text{ and }x<3"]),
    (r"x\ne1", [r"x\in\mathbb{R},\ x\ne1"], [r"x\in\mathbb{R},\ x\ne2", r"x\in\mathbb{R}"]),
    ("(1,2),(2,1)", [r"(x,y)\in\{(1,2),(2,1)\}"], [r"(x,y)\in\{(1,2)\}"]),
    ("H_2O", [r"\ce{H2O}", r"\mathrm{H}_{2}\mathrm{O}"], [r"\ce{H2O2}", "HO_2"]),
    (r"\frac12", [r"\sfrac{1}{2}", r"\nicefrac12"], [r"\sfrac{2}{1}"]),
    (r"\frac{3}{11}", [r"0.\dot2\dot7"], [r"0.\dot7\dot2"]),
    ("1011_2", [r"1011_{\text{base }2}"], [r"1011_{\text{base }3}"]),
  ],
  "variables that look like units": [
    ("b^2+2", ["2+b^2"], ["b^2+2ab", "b^2+2c", r"b^2+2\,d"]),
    ("2ab-3a^2", ["-3a^2+2ab"], ["-3a^2+2", "-3a^2+2bc"]),
    ("3t", [r"3 t", r"3\cdot t"], ["3", "3s", "4t"]),
    ("x=3t", ["3t=x"], ["x=3", "3"]),
    ("3", [r"3\text{ m}", "3 m", "3m", "3h"], ["3t", "3ab", "x=3t", "4m"]),
    ("12.5", ["12.5g"], ["12.5x", "12g"]),
    (r"2\pi r", [r"2 \pi\, r"], [r"2\pi r h", r"2\pi rh"]),
    (r"2\sqrt{3}", [r"2\sqrt{3}\text{ cm}", r"2\sqrt{3} cm", r"2\sqrt{3} m"],
     [r"2\sqrt{3}h", r"2\sqrt{3}ab"]),
    (r"\frac{a}{b}", [r"a/b"], [r"\frac{a}{b}t", r"\frac{a}{b} c"]),
  ],
}

NUMERIC = {
  "corrections": [
    ("44", ["The answer is 42... wait, actually it's 44.", r"\boxed{42}. Wait, no. \boxed{44}",
            "The answer is 42. No, that is wrong, the answer is 44.",
            r"\boxed{44}. Wait, let me check: 40 + 4 = 44.", "Answer: 44. Actually, 44 is even."],
     ["The answer is 44... wait, actually it's 42.", "The answer is 44. Oops, it should be 42.",
      r"\boxed{44}? No: the answer is 42.", r"So \boxed{44}. Wait, that is wrong. It is 42.",
      r"\boxed{44}. Wait, I forgot to add 1, the answer is 45."]),
    ("42", ["The answer is 42, but 44 is close.", r"\boxed{42}. No further steps are needed.",
            r"It is \boxed{42}, no matter which 2 cards are drawn."],
     ["The answer is 42, but it could also be 44.", "Answer: 42, or it might be 44"]),
  ],
  "boxes that are denied": [
    ("6", [r"\boxed{6}. That is correct.", r"It isn't hard: \boxed{6}", r"$\boxed{6}$, or 6.0"],
     [r"$\boxed{6}$ is wrong. It is 7.", r"It is not $\boxed{6}$.", r"\boxed{6} or maybe $7$."]),
  ],
  "words": [
    ("12", ["Answer: twelve", "The answer is twelve.", "**Answer: twelve apples**"],
     ["Answer: twenty", "Answer: twelve or thirteen", "Answer: twelve hundred", "Answer: a few"]),
    ("20", ["Answer: 20th", "#### 20th"], ["Answer: 21st", "#### 2nd"]),
    ("45", ["There are forty-five apples."],
     ["There are forty-five or fifty.", "Half of forty-five.", "forty-five and a half"]),
    ("1", ["Answer: one"], ["No one knows."]),
    ("5000", ["Answer: $5k"], ["Answer: $5", "Answer: $5km"]),
    ("40", ["Answer: 50 minus 10 is 40"], ["Answer: 40 minus 5"]),
    ("5.25", ["Answer: 5 dollars and 25 cents"], ["Answer: 5 dollars", "Answer: 25 cents"]),
    ("1234", ["The answer is 1'234."], ["The answer is 1'243."]),
    ("4200", ["Answer: 42 hundred"], ["Answer: 42", "Answer: 42 thousand"]),
  ],
}
CHOICE = {
  "languages and JSON": [
    ("B", ["La respuesta correcta es B.", "La réponse est la B.", "Die Antwort ist B.",
           '{"answer": "B"}', "{'choice': 'B'}"],
     ["La respuesta correcta es C.", "La respuesta no es B.", '{"answer": "A"}',
      '{"answer": "A or B"}']),
  ],
}


def verdicts(kind: str, rows: list) -> list:
  """Returns the (gold, answer, verdict) that are not as judged."""
  judged = [(gold, answer, correct) for gold, right, wrong in rows
            for correct, answers in ((True, right), (False, wrong)) for answer in answers]
  texts = [rf"so \boxed{{{answer}}}." if kind == "math" else answer for _, answer, _ in judged]
  found = verifiers.grade_many(kind, texts, [gold for gold, _, _ in judged], timeout=60.0)
  return [(gold, answer, verdict) for (gold, answer, correct), verdict
          in zip(judged, found, strict=True)
          if verdict.correct != correct or verdict.unscored_reason]


@pytest.mark.parametrize("about", MATH)
def test_answers_in_boxes(about):
  assert verdicts("math", MATH[about]) == []


@pytest.mark.parametrize("about", NUMERIC)
def test_numbers_in_texts(about):
  assert verdicts("numeric", NUMERIC[about]) == []


@pytest.mark.parametrize("about", CHOICE)
def test_letters_in_texts(about):
  assert verdicts("choice", CHOICE[about]) == []


def test_a_box_that_is_taken_back_counts_no_more():
  texts = [r"\boxed{x+1}? No: the answer is 13.",
           r"\boxed{x+1}. Wait, I check: yes.", r"\boxed{x+1}"]
  found = verifiers.grade_many("math", texts, ["x+1"] * 3, timeout=60.0)
  assert [verdict.correct for verdict in found] == [False, True, True]


@pytest.mark.parametrize("text", ["2st", "11st", "12nd", r"\overline{z}", "3.1415...", "1, 2, ...",
                                  "C_1^2", r"\overline{AB}+1", "1'23"])
def test_other_spellings_stay(text):
  assert spellings.spelled(text) == text
