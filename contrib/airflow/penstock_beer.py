"""DAGs of Airflow: they bring a lake up to date every ten minutes, and keep its tables small every night.

The worker's machine has penstock[spark] and the pipeline's file. In Airflow 2, the operator is in
airflow.operators.bash.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PIPELINE = "/etc/penstock/beer.toml"
COMMON = {
    "start_date": datetime(2026, 1, 1),
    "catchup": False,
    # A lake has one writer. A second run would wait some seconds, and end with exit code 2.
    "max_active_runs": 1,
}

with DAG("penstock_beer", schedule=timedelta(minutes=10), **COMMON):
    check = BashOperator(
        task_id="check",
        # Exit code 2 means wrong usage: no retry helps, so a task of its own finds it before.
        bash_command=f"penstock pipeline validate {PIPELINE}",
        retries=0,
    )
    run = BashOperator(
        task_id="run",
        bash_command=f"penstock pipeline run {PIPELINE} --available-now --json",
        retries=3,
        retry_delay=timedelta(minutes=1),
        execution_timeout=timedelta(hours=2),
    )
    check >> run

with DAG("penstock_beer_maintenance", schedule="30 3 * * *", **COMMON):
    compact = BashOperator(task_id="compact", bash_command=f"penstock pipeline compact {PIPELINE} --json")
    vacuum = BashOperator(task_id="vacuum", bash_command=f"penstock pipeline vacuum {PIPELINE} --json")
    compact >> vacuum
