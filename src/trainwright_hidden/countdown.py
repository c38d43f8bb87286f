"""Hidden world of `qwen-countdown`: larger numbers, one item in five with four of them, other wordings."""

from __future__ import annotations

from trainwright.suites.qwen.countdown import World

WORLD = World(
    numbers=(2, 99),
    above=50,
    targets=(10, 400),
    four_share=0.2,
    product_share=0.6,
    frames=(
        "Find a calculation whose result is {target}. Its numbers are {numbers}, and not one of them may be left out "
        "or "
        "repeated. Operations: {operators}; group with parentheses as you like.\n{format}",
        "You hold these cards: {numbers}.\nWrite one expression over all the cards that is worth {target}, joining "
        "them by "
        "{operators} (parentheses are free).\n{format}",
        "{target} = ?\nPlay all of {numbers} one time each. The signs you have are {operators}, and "
        "parentheses.\n{format}",
    ),
)
