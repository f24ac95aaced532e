
É
<
%/job:ps/replica:0/task:0/device:CPU:0
read0€€ùÀÁÄ‚(è
Â
)/job:worker/replica:0/task:0/device:CPU:0”

RecvTensorè‡ùÀÁÄ‚(N:"èBq[1000B] [1.0Mb/s] weight0 from /job:ps/replica:0/task:0/device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0
D
)/job:worker/replica:0/task:0/device:CPU:0
	gradient0 œúÀÁÄ‚(N
¾
%/job:ps/replica:0/task:0/device:CPU:0”

RecvTensor°êúÀÁÄ‚(N:"èBq[1000B] [1.0Mb/s] update0 from /job:worker/replica:0/task:0/device:CPU:0 to /job:ps/replica:0/task:0/device:CPU:0
=
%/job:ps/replica:0/task:0/device:CPU:0
apply0À¸ûÀÁÄ‚( 