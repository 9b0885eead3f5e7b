"""A Django view, and its project in one file: a payment is a row of the ORM and a record in Kafka, or none.

    $ KAFKA=localhost:9092 DATABASE=shop.db python examples/django_view.py localhost:8000
    $ curl localhost:8000/payments -d customer=ann -d cents=350

Kill it whenever you like: the next start brings what was in doubt to the end that the database has recorded.
"""

import json
import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from tallystick.dualwrite import DjangoStore, WriterPool
from tallystick.dualwrite.contrib.django import current_part, dual_write_atomic

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="an example's",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["DATABASE"],
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    },
)
django.setup()

store = DjangoStore()
writers = WriterPool(
    store, {"bootstrap.servers": os.environ["KAFKA"], "transactional.id": "payments"}, size=4
)


class Payment(models.Model):
    """A payment."""

    customer = models.CharField(max_length=100)
    cents = models.IntegerField()

    class Meta:
        app_label = "shop"


@dual_write_atomic(writers)
def book(customer: str, cents: int) -> Payment:
    """Pay in both; called inside another block, with that block."""
    payment = Payment.objects.create(customer=customer, cents=cents)
    value = json.dumps({"customer": customer, "cents": cents}).encode()
    current_part().send("payments", value, customer.encode())
    return payment


@require_POST
@dual_write_atomic(writers)  # also under ATOMIC_REQUESTS, from which it exempts the view
def pay(request: HttpRequest) -> JsonResponse:
    """When this is answered, both are committed."""
    payment = book(request.POST["customer"], int(request.POST["cents"]))
    return JsonResponse({"id": payment.pk}, status=201)


urlpatterns = [path("payments", pay)]


def main(address: str) -> None:
    """Make the tables, finish what an earlier life has left, and serve."""
    if Payment._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Payment)
    store.create()
    print(writers.recover())
    execute_from_command_line(["django", "runserver", "--noreload", "--skip-checks", address])


if __name__ == "__main__":
    main(sys.argv[1])
