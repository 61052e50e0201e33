"""A shop with search, categories, products, cart and checkout. Orders permanently reduce balance and stock."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import THINGS, address, money
from agentenv.envs.domsim.records import Move, TaskDraft, added, changed, find, numbered, without
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, tabs, textbox
from agentenv.envs.domsim.world import World

QUANTITIES = ("1", "2", "3", "4")
COUPON, PERCENT = "SPRING", 10


class Product(NamedTuple):
    """One thing for sale; ``price`` in cents."""

    id: int
    name: str
    category: str
    price: int
    stock: int


class Line(NamedTuple):
    """One line of the cart. ``id`` is that of the product."""

    id: int
    quantity: int


class Order(NamedTuple):
    """A completed order; ``total`` in cents."""

    id: int
    lines: tuple[Line, ...]
    address: str
    total: int


class Shop:
    """``shop.products``, ``shop.cart``, ``shop.orders``, ``shop.home`` (the user's address), ``shop.balance`` in cents."""

    name: ClassVar[str] = "Shop"

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates all products with different prices, two of them in the cart."""
        names = [(name, kind) for kind, names in THINGS.items() for name in names]
        prices = rng.sample(range(300, 6000, 25), len(names))
        rows = [
            Product(0, name, kind, price, rng.randrange(4, 20))
            for (name, kind), price in zip(names, prices, strict=True)
        ]
        cart = tuple(Line(id, 1) for id in sorted(rng.sample(range(1, len(rows) + 1), 2)))
        return {
            "shop.products": numbered(rows),
            "shop.cart": cart,
            "shop.orders": (),
            "shop.home": address(rng),
            "shop.balance": 100_000,
        }

    def view(self, world: World) -> list[Row]:
        """A category, results of a search, a product, the cart, or the checkout."""
        match world.page[1:]:
            case ("product", int(id)):
                return self._product(world, find(world.data["shop.products"], id))
            case ("cart",):
                return self._cart(world)
            case ("checkout",):
                return [
                    heading(f"Checkout: {money(total(world.data))}"),
                    [textbox(world.fields, "address", "Deliver to")],
                    [textbox(world.fields, "coupon", "Coupon code")],
                    [button("Place order", "submit", "order"), button("Cancel", "cancel", "back")],
                ]
            case ("results", str(query)):
                found = [p for p in world.data["shop.products"] if query.casefold() in p.name.casefold()]
                return [*self._head(world, ""), [label(f"{len(found)} results")], *self._list(found)]
            case _:
                kind = str(world.page[1]) if len(world.page) > 1 else next(iter(THINGS))
                held = [p for p in world.data["shop.products"] if p.category == kind]
                return [*self._head(world, kind), *self._list(held)]

    def _head(self, world: World, kind: str) -> list[Row]:
        search = [textbox(world.fields, "query", "Search"), button("Search", "submit", "search")]
        return [[*search, button("Cart", "cart", "show_cart")], tabs(tuple(THINGS), kind)]

    def _list(self, products: list[Product]) -> list[Row]:
        return [[item(f"{p.name}, {money(p.price)}", f"product.{p.id}", "show", p.id)] for p in products]

    def _product(self, world: World, product: Product) -> list[Row]:
        return [
            heading(product.name),
            [label(f"{money(product.price)}, {product.stock} in stock")],
            [choice(world.fields, "quantity", "Quantity", QUANTITIES)],
            [button("Add to cart", "submit", "add", product.id), button("Cart", "cart", "show_cart")],
        ]

    def _cart(self, world: World) -> list[Row]:
        rows = [heading("Cart")]
        for line in world.data["shop.cart"]:
            product = find(world.data["shop.products"], line.id)
            text = label(f"{line.quantity} x {product.name}, {money(line.quantity * product.price)}")
            rows.append([text, button(f"Remove {product.name}", f"remove.{line.id}", "remove", line.id)])
        full = bool(world.data["shop.cart"])
        return [*rows, [button("Checkout", "checkout", "pay", enabled=full)]]

    def view_dialog(self, world: World) -> list[Row]:
        """Confirms that an order was placed."""
        return [heading("Thank you for your order."), [button("Close", "submit", "back")]]

    def show_tab(self, world: World, name: str) -> None:
        """Shows a category."""
        world.go("shop", name)

    def show(self, world: World, id: int) -> None:
        """Shows a product."""
        world.go("shop", "product", id)

    def show_cart(self, world: World) -> None:
        """Shows the cart."""
        world.go("shop", "cart")

    def search(self, world: World) -> None:
        """Shows the products whose name holds the query."""
        world.go("shop", "results", world.text("query"))

    def add(self, world: World, id: int) -> None:
        """Adds the chosen quantity to the cart."""
        number = int(world.picked("quantity", QUANTITIES[0]))
        world.data["shop.cart"] = in_cart(world.data["shop.cart"], id, number)
        world.notice = "Added to the cart."

    def remove(self, world: World, id: int) -> None:
        """Removes a product from the cart."""
        world.data["shop.cart"] = without(world.data["shop.cart"], id)

    def pay(self, world: World) -> None:
        """Shows the checkout."""
        world.go("shop", "checkout", fields={"address": world.data["shop.home"]})

    def order(self, world: World) -> None:
        """Orders the content of the cart, if there are an address, enough money and enough stock."""
        coupon = world.text("coupon").upper()
        lines, products = world.data["shop.cart"], world.data["shop.products"]
        if coupon not in ("", COUPON):
            world.notice = "This coupon is not valid."
        elif not world.text("address"):
            world.notice = "Where shall it be delivered?"
        elif any(find(products, line.id).stock < line.quantity for line in lines):
            world.notice = "There is not enough in stock."
        elif total(world.data) > world.data["shop.balance"]:
            world.notice = "Your balance is too low."
        else:
            world.data |= bought(world.data, lines, world.text("address"), bool(coupon))
            world.go("shop")
            world.ask("thanks")


def in_cart(cart: tuple[Line, ...], id: int, number: int) -> tuple[Line, ...]:
    """Returns the cart with ``number`` more of a product, sorted so that removing and re-adding changes nothing."""
    held = next((line.quantity for line in cart if line.id == id), 0)
    return tuple(sorted((*without(cart, id), Line(id, held + number))))


def total(data: dict[str, Any]) -> int:
    """Price of the cart in cents."""
    return sum(find(data["shop.products"], line.id).price * line.quantity for line in data["shop.cart"])


def bought(data: dict[str, Any], lines: tuple[Line, ...], to: str, coupon: bool) -> dict[str, Any]:
    """Returns the changes of an order: the order is stored, stock and balance are reduced, and the cart is emptied."""
    products, price = data["shop.products"], 0
    for line in lines:
        product = find(products, line.id)
        price += product.price * line.quantity
        products = changed(products, line.id, stock=product.stock - line.quantity)
    price -= price * PERCENT // 100 * coupon
    return {
        "shop.products": products,
        "shop.cart": (),
        "shop.orders": added(data["shop.orders"], Order(0, lines, to, price)),
        "shop.balance": data["shop.balance"] - price,
    }


def _empty_cart(data: dict[str, Any]) -> tuple[Move, ...]:
    return tuple(("click", f"remove.{line.id}") for line in data["shop.cart"])


def _search(product: Product) -> tuple[Move, ...]:
    return (
        ("open", "shop"),
        ("fill", "query", product.name),
        ("click", "submit"),
        ("click", f"product.{product.id}"),
    )


_CHECKOUT: tuple[Move, ...] = (("click", "cart"), ("click", "checkout"))


def _cart_with_only(data: dict[str, Any], product: Product, number: int) -> tuple[Move, ...]:
    """Empties the cart, then puts one product into it."""
    pick = (("select", "quantity", str(number)),) if number > 1 else ()
    clear = (("open", "shop"), ("click", "cart"), *_empty_cart(data))
    return (*clear, *_search(product), *pick, ("click", "submit"))


def buy(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Buy some of one product and nothing else."""
    product, number = rng.choice(data["shop.products"]), rng.randrange(1, 5)
    after = bought(data, (Line(product.id, number),), data["shop.home"], False)
    moves = (*_cart_with_only(data, product, number), *_CHECKOUT, ("click", "submit"))
    return TaskDraft(f"Empty the cart, then buy {number} of {product.name!r} and nothing else.", moves, after)


def buy_cheapest(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Buy the cheapest product of a category."""
    kind = rng.choice(list(THINGS))
    product = min((p for p in data["shop.products"] if p.category == kind), key=lambda p: p.price)
    after = bought(data, (Line(product.id, 1),), data["shop.home"], False)
    clear = (("open", "shop"), ("click", "cart"), *_empty_cart(data), ("open", "shop"))
    show = (("click", f"tab.{kind}"), ("click", f"product.{product.id}"), ("click", "submit"))
    goal = f"Empty the cart, then buy one of the cheapest product of the category {kind} and nothing else."
    return TaskDraft(goal, (*clear, *show, *_CHECKOUT, ("click", "submit")), after)


def check_out(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Buy what is in the cart already."""
    after = bought(data, data["shop.cart"], data["shop.home"], False)
    return TaskDraft("Buy what is in my cart.", (("open", "shop"), *_CHECKOUT, ("click", "submit")), after)


def deliver(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Buy the cart for another address."""
    to = address(rng)
    after = bought(data, data["shop.cart"], to, False)
    moves = (("open", "shop"), *_CHECKOUT, ("fill", "address", to), ("click", "submit"))
    return TaskDraft(f"Buy what is in my cart and have it delivered to {to}.", moves, after)


def redeem(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Buy the cart with a coupon."""
    after = bought(data, data["shop.cart"], data["shop.home"], True)
    moves = (("open", "shop"), *_CHECKOUT, ("fill", "coupon", COUPON), ("click", "submit"))
    return TaskDraft(f"Buy what is in my cart with the coupon {COUPON}.", moves, after)


def put_in_cart(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Put a product into the cart."""
    held = {line.id for line in data["shop.cart"]}
    product = rng.choice([p for p in data["shop.products"] if p.id not in held])
    cart = in_cart(data["shop.cart"], product.id, 1)
    moves = (*_search(product), ("click", "submit"))
    return TaskDraft(f"Put one {product.name!r} into my cart, do not buy it yet.", moves, {"shop.cart": cart})


def take_out(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Take a product out of the cart."""
    line = rng.choice(data["shop.cart"])
    name = find(data["shop.products"], line.id).name
    moves = (("open", "shop"), ("click", "cart"), ("click", f"remove.{line.id}"))
    return TaskDraft(
        f"Remove {name!r} from my cart.", moves, {"shop.cart": without(data["shop.cart"], line.id)}
    )


def price_of(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find a price."""
    product = rng.choice(data["shop.products"])
    goal = f"What does {product.name!r} cost in the shop? Answer as $0.00."
    return TaskDraft(goal, (*_search(product), ("answer", money(product.price))), {}, money(product.price))


TEMPLATES = {
    "shop-buy": buy,
    "shop-buy-cheapest": buy_cheapest,
    "shop-check-out": check_out,
    "shop-deliver": deliver,
    "shop-redeem": redeem,
    "shop-put-in-cart": put_in_cart,
    "shop-take-out": take_out,
    "shop-price": price_of,
}
