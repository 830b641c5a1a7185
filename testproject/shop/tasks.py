"""The shop's slow work, one handler for each thing that can happen to a task."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.core.mail import send_mail
from django.utils import timezone

from cairnq_django import AsyncTaskContext, TaskContext, TaskError, task
from testproject.shop.models import Order


@task
def resize_photos(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Reports progress, succeeds."""
    photos = payload["photos"]
    for done, photo in enumerate(photos):
        ctx.progress(done / len(photos), photo)
        time.sleep(0.4)  # stands for the work on one photo
    ctx.progress(1.0, "all resized")
    return {"resized": len(photos)}


@task(max_attempts=5)
def send_receipt(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Fails twice, is retried after a growing delay, succeeds."""
    order = Order.objects.get(pk=payload["order"])
    # Delivery is at least once: a worker that died between sending and reporting leaves the task to be run again.
    if order.receipt_sent_at is None:
        if ctx.attempt <= 2:
            raise TaskError("The mail server is busy, try again later (421)", code="mail_server_busy")
        send_mail("Your receipt", f"Thank you for order {order.pk}.", None, [order.email])
        order.receipt_sent_at = timezone.now()
        order.save(update_fields=["receipt_sent_at"])
    return {"sent_to": order.email}


@task
def charge_card(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Fails for good: asking the bank again would not change its answer."""
    raise TaskError(
        "The bank declined the card",
        code="card_declined",
        retryable=False,
        details={"card_ending": payload["card_ending"], "amount": payload["amount"]},
    )


@task
async def fetch_rates(ctx: AsyncTaskContext, payload: dict[str, Any]) -> dict[str, float]:
    """Runs on the worker's event loop, where thousands of slow connections cost no threads."""
    rates = {}
    for done, currency in enumerate(payload["currencies"]):
        await ctx.progress(done / len(payload["currencies"]), currency)
        rates[currency] = await ask_the_bank_for(currency)
    return rates


@task
def build_report(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, int] | None:
    """Takes a minute, and looks between two pages whether anybody still wants it."""
    for page in range(payload["pages"]):
        if ctx.canceled():
            return None
        ctx.progress(page / payload["pages"], f"page {page + 1} of {payload['pages']}")
        time.sleep(0.5)  # stands for the work on one page
    return {"pages": payload["pages"]}


@task(max_attempts=3)
def average_basket(ctx: TaskContext, payload: dict[str, Any]) -> float:
    """Has a bug: a day without orders divides by zero, at every attempt."""
    amounts = payload["amounts"]
    return float(sum(amounts) / len(amounts))


async def ask_the_bank_for(currency: str) -> float:
    await asyncio.sleep(0.5)  # stands for a request to a bank
    return {"USD": 1.08, "GBP": 0.85, "CHF": 0.96, "JPY": 169.3}[currency]
