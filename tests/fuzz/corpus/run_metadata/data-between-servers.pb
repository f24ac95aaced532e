
º
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
´
%/job:ps/replica:0/task:1/device:CPU:0Š

RecvTensor€€ùÀÁÄ‚(:"Bi[12B] [1.0Mb/s] moved from /job:ps/replica:0/task:0/device:CPU:0 to /job:ps/replica:0/task:1/device:CPU:0
8
%/job:ps/replica:0/task:1/device:CPU:0
copy€ùÀÁÄ‚Š
>
read0ReadVariableOp"%/job:ps/replica:0/task:0/device:CPU:0
Ñ
weight0/send_Sendread0"%/job:ps/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_name	weight0
Ê
update0/recv_Recv"%/job:ps/replica:0/task:0/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:0/device:CPU:0*:
send_device+)/job:worker/replica:0/task:0/device:CPU:0*
tensor_name	update0
[
apply0ResourceApplyGradientDescentupdate0/recv"%/job:ps/replica:0/task:0/device:CPU:0
É

moved/send_Sendread0"%/job:ps/replica:0/task:0/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:1/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_namemovedû
Î
weight0/recv_Recv")/job:worker/replica:0/task:0/device:CPU:0*:
recv_device+)/job:worker/replica:0/task:0/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_name	weight0
L
	gradient0MatMulweight0/recv")/job:worker/replica:0/task:0/device:CPU:0
Ù
update0/send_Send	gradient0")/job:worker/replica:0/task:0/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:0/device:CPU:0*:
send_device+)/job:worker/replica:0/task:0/device:CPU:0*
tensor_name	update0Š
C
copyIdentity
moved/recv"%/job:ps/replica:0/task:1/device:CPU:0
Â

moved/recv_Recv"%/job:ps/replica:0/task:1/device:CPU:0*6
recv_device'%/job:ps/replica:0/task:1/device:CPU:0*6
send_device'%/job:ps/replica:0/task:0/device:CPU:0*
tensor_namemoved